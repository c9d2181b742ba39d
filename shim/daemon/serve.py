"""Composition and lifetime of a server: its collaborators, signals, and notifications to systemd."""

import contextlib
import dataclasses
import faulthandler
import fcntl
import gc
import math
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import structlog

from shim.base import atomic_files, deadline
from shim.base.decoding import prepare_types
from shim.base.deferred_checks import DeferredChecks
from shim.cgroup.kernel_log import OomKills
from shim.checkpoint import root as state
from shim.checkpoint.engine import EngineStore
from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.cni.network_source import network_source
from shim.cni.plugins import Plugins
from shim.cni.programs import find_plugins_via
from shim.config.model import Config
from shim.credentials.keyring import keyring_of_node
from shim.cri.activation import notify, watchdog_seconds
from shim.cri.image_service import ImageService
from shim.cri.runtime_service import RuntimeService
from shim.cri.server import CriServer
from shim.cri.tracing import Interceptors, tracing
from shim.daemon.loopback import CHECK_SECONDS, LoopbackGuard
from shim.daemon.nri import serving_plugins, tell_of_ends
from shim.daemon.recover import (
    end_execs,
    end_orphaned_plugins,
    recover_checkpoints,
    remove_leftover_containers,
    remove_orphaned_files,
    restore_limits,
)
from shim.daemon.shim_leaks import ShimLeaks
from shim.daemon.state_dump import StateDump
from shim.daemon.watchdog import Watchdog, check_server
from shim.domain.errors import Cancelled, DeadlineExceeded, FailedPrecondition, Unavailable
from shim.engine.client import DockerEngine
from shim.engine.counted import counted
from shim.engine.facts import EngineFacts
from shim.engine.interface import Engine
from shim.engine.tasks import TaskWatch
from shim.hostfs.client import HostFs
from shim.logs.supervisor import LogSupervisor
from shim.node.cni_conf import prepare_cni_conf
from shim.node.status import METRICS_READY, STREAMING_ADDRESS_READY
from shim.nri.plugins import Plugins as NriPlugins
from shim.nri.plugins import Timeouts
from shim.oci.user_namespaces import UserNamespaces
from shim.own_exec.own_exec import OwnExec
from shim.runtime import Cni, ImagePuller, Runtime
from shim.sandbox.collect import collect_networks
from shim.stats.disk import LayerMeter
from shim.stats.images import StoreMeter
from shim.stats.sampler import Sampler
from shim.stream_sessions import serve_session
from shim.streaming.listener import Listener, listen
from shim.streaming.pace import SWITCH_INTERVAL
from shim.streaming.server import StreamServer
from shim.streaming.sessions import Sessions
from shim.view.node_view import NodeView
from shim.view.watch import Watcher

_RECOVER_RETRY = 1.0
"""Seconds between two attempts of a recovery step while Docker is unavailable."""

_COLLECT_RETRY = 15.0
"""Seconds until a failed release of network resources is repeated."""

_RECOVER_STOP = 1.0
"""Seconds for a background thread to end when the server stops. The next server repeats unfinished recovery."""

_STREAMS_GRACE = 1.5
"""Seconds for the processes of streaming sessions to end when the server stops: a restart should take 3 s."""

_CNI_CONF_SECONDS = 2.0
"""Seconds to write the server's CNI configuration at the start; after that it is retried in the background."""

Step = Callable[[Runtime], None]

OPEN_FILES = 65536
"""Wanted limit of open files: each call to Docker and each client holds one. Not higher, because plugins inherit the
limit, and some programs close every possible descriptor one by one."""

UMASK = 0o022
"""Set regardless of the caller's umask, because helpers and CNI plugins inherit it, and pods use the directories that
are made for host paths. Private files are created with an explicit mode."""
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")

_STOP = (signal.SIGTERM, signal.SIGINT)

log = structlog.get_logger(__name__)


def serve(config: Config) -> bool:
    """Serve the CRI until SIGTERM or SIGINT; a second signal kills the server.

    After the first signal, RunPodSandbox calls in flight may finish and reads are still answered. The socket is gone
    only for the last moment, so a restart does not make the node not ready. Docker need not run: the node is not ready
    until it does. Raise ShimError if the server cannot start; return False if a RunPodSandbox had to be cut off.
    """
    # Write the stacks of all threads to the log on a crash of the interpreter and on the signal of systemd's watchdog.
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL)
    prepare_types()
    _raise_descriptor_limit()
    os.umask(UMASK)
    dump = StateDump()
    watchdog = watchdog_seconds(os.environ)
    with (
        _signals(dump) as stop,
        _exclusive_lock(config.root_directory),
        _open_listener(config) as listener,
        _runtime(config, Sessions(base_url=listener.base_url), dump=dump) as rt,
        _guard_loopback(rt),
        _end_leaked_shims(rt) as leaks,
        _serve_metrics(rt, leaks),
        _recover(rt),
        _collect_garbage(rt),
        _stats_threads(rt),
        _serve_nri(rt, dump=dump),
        tracing(config, environ=os.environ) as interceptors,
        _serve_cri(rt, dump=dump, interceptors=interceptors) as server,
        _serve_streams(rt, listener, dump=dump),
    ):
        # These objects live as long as the server. Exempt them from garbage collection, which would pause RPCs.
        gc.collect()
        gc.freeze()
        _log_low_limits(os.environ)
        notify("READY=1", os.environ)
        with _watchdog(watchdog, server=server, view=rt.view, dump=dump):
            stop.wait()
            for again in _STOP:
                signal.signal(again, signal.SIG_DFL)
            notify("STOPPING=1", os.environ)
            return server.drain(grace=config.shutdown_grace)


def _raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _log_low_limits(environ: Mapping[str, str]) -> None:
    """Log limits that systemd could not raise: in a container it does not report that."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES:
        log.info("limit of open files is low", limit=limit, wanted=OPEN_FILES)
    if environ.get("SYSTEMD_EXEC_PID") != str(os.getpid()):
        return  # not started by the unit, which asks for a lower score
    score = int(_OOM_SCORE_ADJ.read_bytes())
    if score >= 0:
        log.info("OOM score is not lowered", oom_score_adj=score)


@contextlib.contextmanager
def _signals(dump: StateDump) -> Iterator[threading.Event]:
    """Handle signals inside the block, also during start and stop. Yield the event that a stop signal sets.

    The interpreter writes signal numbers to a socket at once, in whichever thread the kernel interrupts. A Python
    handler would run in the main thread only. That thread may be just about to wait, or another thread may be
    interrupted, so it might not wake; and it may hold any lock.
    """
    stop = threading.Event()
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno())
        for number in (*_STOP, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, lambda _number, _frame: None)
        handling = threading.Thread(target=_handle_signals, args=(reader, stop, dump), name="signals", daemon=True)
        handling.start()
        try:
            yield stop
        finally:
            signal.set_wakeup_fd(-1)
            writer.close()
            handling.join()


def _handle_signals(signals: socket.socket, stop: threading.Event, dump: StateDump) -> None:
    while received := signals.recv(1):
        match signal.Signals(received[0]):
            case signal.SIGHUP:
                log.info("SIGHUP ignored: settings are read at the start")
            case signal.SIGUSR1:
                dump.write("SIGUSR1")
            case number:
                log.info("stopping", signal=number.name)
                stop.set()


@contextlib.contextmanager
def _watchdog(seconds: float | None, *, server: CriServer, view: NodeView, dump: StateDump) -> Iterator[None]:
    """Run the watchdog inside the block, if the unit has one."""
    if seconds is None:
        yield
        return
    watchdog = Watchdog(
        seconds=seconds,
        check=partial(check_server, server=server, view=view),
        passed=partial(notify, "WATCHDOG=1", os.environ),
        failed=partial(dump.write, "watchdog"),
    )
    watchdog.start()
    try:
        yield
    finally:
        watchdog.stop()


@contextlib.contextmanager
def _exclusive_lock(root: Path) -> Iterator[None]:
    """Lock the state directory: two servers would undo each other's work."""
    state.ensure_root_directory(root)
    with atomic_files.failing_as(f"open {root / state.LOCK}"):
        lock = os.open(root / state.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _take(lock, root)
        state.remove_checkpointing(root)
        yield
    finally:
        os.close(lock)


def _take(lock: int, root: Path) -> None:
    """Take a lock that only this process holds. A child between fork and exec would keep one of flock(2)."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FailedPrecondition(f"root_directory {root} is in use by another server") from None


def _engine(config: Config, *, dump: StateDump) -> Engine:
    engine = DockerEngine(config.docker_endpoint, request_timeout=config.runtime_request_timeout)
    dump.add("docker connections", lambda: [engine.connections()])
    return counted(engine) if config.metrics_bind_addr or config.tracing_endpoint else engine


@contextlib.contextmanager
def _open_listener(config: Config) -> Iterator[Listener]:
    """Bind the streaming address, which RPCs return in URLs."""
    listener = listen(config)
    with listener.socket:
        yield listener


@contextlib.contextmanager
def _serve_cri(rt: Runtime, *, dump: StateDump, interceptors: Interceptors) -> Iterator[CriServer]:
    """Answer RPCs inside the block."""
    server = CriServer(
        endpoint=rt.config.container_runtime_endpoint,
        runtime=RuntimeService(rt),
        image=ImageService(rt),
        environ=os.environ,
        interceptors=interceptors,
        names_of=rt.view.names_of,
    )
    dump.add("rpcs", server.rpcs)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def _serve_streams(rt: Runtime, listener: Listener, *, dump: StateDump) -> Iterator[None]:
    """Serve streaming sessions inside the block, and end them at its end."""
    if listener.taken:
        log.error("streams are served at another port", address=listener.base_url, error=listener.taken)
        rt.taken_addresses[STREAMING_ADDRESS_READY] = f"{listener.taken}; streams are served at {listener.base_url}"
    server = StreamServer(
        listener,
        sessions=rt.sessions,
        serve=partial(serve_session, rt),
        idle_timeout=rt.config.streaming_idle_timeout,
        max_sessions=rt.config.streaming_max_sessions,
        max_sessions_each=rt.config.streaming_max_sessions_per_container,
    )
    dump.add("streaming sessions", lambda: [server.row()])
    server.start()
    try:
        yield
    finally:
        if not server.stop(grace=_STREAMS_GRACE):
            log.warning("streaming sessions did not end")


@contextlib.contextmanager
def _runtime(config: Config, sessions: Sessions, *, dump: StateDump) -> Iterator[Runtime]:
    """Create the collaborators; keep the view and the CNI configuration current inside the block."""
    with contextlib.ExitStack() as ending:
        engine = _engine(config, dump=dump)
        ending.callback(engine.close)
        host_fs = HostFs()
        host_fs.start()
        ending.callback(host_fs.stop)
        keyring = keyring_of_node(config, environ=os.environ, call=host_fs.call)
        pod_cidr = PodCidr(config.root_directory / state.POD_CIDR, default=config.pod_cidr)
        is_prepared = _prepare_cni_conf(config, host_fs, pod_cidr)
        cni = ending.enter_context(_cni(config, host_fs, pod_cidr))
        logs = LogSupervisor(level=config.log_level, style=config.log_format)
        facts = EngineFacts(
            engine,
            restrict_oom_score_adj=config.restrict_oom_score_adj,
            kept=EngineStore(config.root_directory / state.ENGINE),
        )
        kills = OomKills()
        kills.start()
        ending.callback(kills.stop)
        view = NodeView(engine, logs=logs, kills=kills, docker_root=lambda: facts.info().docker_root_dir)
        logs.start(on_drained=view.publish_exit)
        ending.callback(logs.stop)
        deferred_checks = DeferredChecks()
        ending.callback(deferred_checks.stop)
        tasks = TaskWatch()
        ending.callback(tasks.close)
        own_exec = OwnExec(is_wanted=config.own_exec)
        ending.callback(own_exec.stop)
        rt = Runtime(
            config=config,
            engine=engine,
            facts=facts,
            view=view,
            logs=logs,
            checkpoints=CheckpointStore(config.root_directory / state.SANDBOXES),
            limits=LimitStore(config.root_directory / state.LIMITS),
            user_namespaces=UserNamespaces(facts),
            own_exec=own_exec,
            cni=cni,
            host_fs=host_fs,
            nri=NriPlugins(
                Timeouts(registration=config.nri_plugin_registration_timeout, request=config.nri_plugin_request_timeout)
            ),
            sessions=sessions,
            puller=ImagePuller(keyring=keyring),
            deferred_checks=deferred_checks,
            tasks=tasks,
        )
        if not is_prepared:
            late = partial(_prepare_cni_conf_late, rt)
            deferred_checks.add(late, what="the CNI configuration", seconds=math.inf, asks_docker=False)
        ending.enter_context(_sync_view(rt, dump=dump))
        yield rt


@contextlib.contextmanager
def _sync_view(rt: Runtime, *, dump: StateDump) -> Iterator[None]:
    """Keep the view in sync with Docker inside the block; recover pods before the first sync."""
    watcher = Watcher(rt.engine, rt.view, on_connect=rt.facts.refresh, before_first_sync=partial(_recover_pods, rt))
    watcher.start()
    _add_state(dump, rt, watcher)
    try:
        yield
    finally:
        watcher.stop()


def _add_state(dump: StateDump, rt: Runtime, watcher: Watcher) -> None:
    """Register the parts that RPCs may wait for as sources of state dumps."""
    dump.add("locks", rt.locks.rows)
    dump.add("pulls", lambda: [rt.puller.pulls.row()])
    dump.add("view", lambda: [dataclasses.asdict(rt.view.stats())])
    dump.add("view queue", lambda: [watcher.row()])
    dump.add("log process", lambda: [_log_state(rt)])


def _log_state(rt: Runtime) -> dict[str, object]:
    stats = rt.logs.stats()
    figures = {} if stats.figures is None else msgspec.to_builtins(stats.figures)
    return {"pid": stats.pid, "restarts": stats.restarts, "held_back": stats.held_back, **figures}


def _prepare_cni_conf(config: Config, host_fs: HostFs, pod_cidr: PodCidr) -> bool:
    """Write the server's own CNI configuration, if set; return False if its directory does not answer."""
    try:
        with deadline.bound(_CNI_CONF_SECONDS):
            prepare_cni_conf(config, ranges=pod_cidr.ranges, call=host_fs.call)
    except (DeadlineExceeded, Unavailable) as error:
        log.warning("cannot write CNI configuration now", directory=str(config.cni_conf_dir), error=error)
        return False
    return True


def _prepare_cni_conf_late(rt: Runtime) -> bool:
    with deadline.bound(_CNI_CONF_SECONDS), rt.locks.cni_conf():
        prepare_cni_conf(rt.config, ranges=rt.cni.pod_cidr.ranges, call=rt.host_fs.call)
    return True


@contextlib.contextmanager
def _cni(config: Config, host_fs: HostFs, pod_cidr: PodCidr) -> Iterator[Cni]:
    """Create the runner of CNI plugins; watch the configuration directory inside the block."""
    find = find_plugins_via(host_fs)
    networks = network_source(config, find=find, host_fs=host_fs)
    networks.start()
    plugins = Plugins(
        bin_dirs=config.cni_bin_dir,
        cache_dir=config.cni_cache_dir,
        timeout=config.cni_plugin_timeout,
        find=find,
    )
    try:
        yield Cni(networks=networks, plugins=plugins, pod_cidr=pod_cidr)
    finally:
        networks.stop()


@contextlib.contextmanager
def _serve_metrics(rt: Runtime, leaks: ShimLeaks) -> Iterator[None]:
    """Serve the server's own metrics inside the block, if an address is set."""
    if not rt.config.metrics_bind_addr:
        yield
        return
    # Imported on demand: it takes 2 MiB that most nodes do not need.
    from shim.daemon.telemetry import telemetry  # noqa: PLC0415

    with contextlib.ExitStack() as ending:
        try:
            ending.enter_context(telemetry(rt.config.metrics_bind_addr, view=rt.view, logs=rt.logs, leaks=leaks))
        except FailedPrecondition as error:  # pods work without metrics
            log.error("metrics are not served", error=error)
            rt.taken_addresses[METRICS_READY] = str(error)
        yield


@contextlib.contextmanager
def _serve_nri(rt: Runtime, *, dump: StateDump) -> Iterator[None]:
    """Let NRI plugins see and change containers inside the block, if NRI is on."""
    if not rt.config.nri:
        yield
        return
    dump.add("NRI plugins", rt.nri.rows)
    with _background(rt, tell_of_ends, name="nri-ends"), serving_plugins(rt):
        yield


@contextlib.contextmanager
def _guard_loopback(rt: Runtime) -> Iterator[None]:
    """Keep pods from the node's loopback addresses inside the block, and after it while pods are left."""
    if rt.config.network_plugin == "none":
        yield
        return
    guard = LoopbackGuard()
    guard.keep()
    with _background(rt, partial(_keep_guard, guard), name="loopback-guard"):
        yield
    if not (rt.checkpoints.all() or rt.checkpoints.corrupt()):
        guard.remove()


def _keep_guard(guard: LoopbackGuard, _rt: Runtime, stopping: threading.Event, scope: deadline.Scope) -> None:
    with deadline.entered(scope):
        while not stopping.wait(CHECK_SECONDS):
            guard.keep()


@contextlib.contextmanager
def _end_leaked_shims(rt: Runtime) -> Iterator[ShimLeaks]:
    """Kill leaked containerd-shims in a background thread."""
    leaks = ShimLeaks(rt)
    with _background(rt, leaks.watch, name="shim-leaks"):
        yield leaks


@contextlib.contextmanager
def _stats_threads(rt: Runtime) -> Iterator[None]:
    """Sample the resource usage of containers inside the block."""
    sampler, layers = Sampler(rt), LayerMeter(rt, parts=StoreMeter(rt))
    sampler.start()
    layers.start()
    try:
        yield
    finally:
        layers.stop()
        sampler.stop()


def _recover_pods(rt: Runtime) -> None:
    """Recover what pods depend on, after Docker has listed them and before any RPC about them is answered."""
    for step in (end_orphaned_plugins, recover_checkpoints):
        _run_step(rt, step)


@contextlib.contextmanager
def _recover(rt: Runtime) -> Iterator[None]:
    """Run the other recovery steps in a background thread."""
    with _background(rt, _recover_rest, name="recover"):
        yield


@contextlib.contextmanager
def _collect_garbage(rt: Runtime) -> Iterator[None]:
    """Clean up networks without a pod in a background thread: at once, and then periodically."""
    if not rt.config.cni_gc_interval:
        yield
        return
    with _background(rt, _collect_networks, name="cni-gc"):
        yield


def _collect_networks(rt: Runtime, stopping: threading.Event, scope: deadline.Scope) -> None:
    with deadline.entered(scope):
        while True:
            if stopping.wait(_collect(rt)):
                return


def _collect(rt: Runtime) -> float:
    """Clean up once; return the seconds until the next run."""
    released: list[bool] = []

    def collect(rt: Runtime) -> None:
        released.append(collect_networks(rt))

    if not _run_step(rt, collect):
        return _RECOVER_RETRY
    return rt.config.cni_gc_interval if all(released) else min(_COLLECT_RETRY, rt.config.cni_gc_interval)


@contextlib.contextmanager
def _background(
    rt: Runtime, work: Callable[[Runtime, threading.Event, deadline.Scope], None], *, name: str
) -> Iterator[None]:
    """Run `work` in a background thread; cancel it when the block ends."""
    stopping, scope = threading.Event(), deadline.Scope()
    thread = threading.Thread(target=work, args=(rt, stopping, scope), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        scope.cancel()
        thread.join(_RECOVER_STOP)


def _recover_rest(rt: Runtime, stopping: threading.Event, scope: deadline.Scope) -> None:
    """Run each step; repeat a step while Docker is unavailable."""
    with deadline.entered(scope):
        for step in (restore_limits, end_execs, remove_orphaned_files, remove_leftover_containers):
            while not _run_step(rt, step):
                if stopping.wait(_RECOVER_RETRY):
                    return


def _run_step(rt: Runtime, step: Step) -> bool:
    """Run a step; return False if Docker is unavailable."""
    try:
        step(rt)
    except (Unavailable, Cancelled, DeadlineExceeded) as error:
        log.debug("recovery postponed: Docker is unavailable", error=error)
        return False
    except Exception:
        # The failure concerns single pods; serve the others all the same.
        log.exception("recovery step failed", step=step.__name__)
    return True
