"""Composition and lifetime of a server: its collaborators, signals, and notifications to systemd."""

import contextlib
import dataclasses
import faulthandler
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial

import msgspec
import structlog

from shim.base.decoding import prepare_types
from shim.base.deferred_checks import DeferredChecks
from shim.cgroup.kernel_log import OomKills
from shim.checkpoint import root as state
from shim.checkpoint.engine import EngineStore
from shim.checkpoint.limits import LimitStore
from shim.checkpoint.pod_cidr import PodCidr
from shim.checkpoint.store import CheckpointStore
from shim.config.model import Config
from shim.credentials.keyring import keyring_of_node
from shim.cri.activation import notify, watchdog_seconds
from shim.cri.image_service import ImageService
from shim.cri.runtime_service import RuntimeService
from shim.cri.server import CriServer
from shim.cri.tracing import Interceptors, tracing
from shim.criu.support import CriuSupport
from shim.daemon.background import background
from shim.daemon.cni import HELPER_MODULES, running_cni, write_cni_conf, write_cni_conf_later
from shim.daemon.loopback import guarding_loopback
from shim.daemon.network_cleanup import cleaning_networks
from shim.daemon.nri import serving_plugins
from shim.daemon.process_limits import check_64_bit, log_low_limits, raise_open_files_limit
from shim.daemon.recover import recover_pods, recovering
from shim.daemon.reload import Reload, Reread
from shim.daemon.shim_leaks import ShimLeaks
from shim.daemon.signals import STOP_SIGNALS, handling_signals
from shim.daemon.state_dump import StateDump
from shim.daemon.watchdog import Watchdog, check_server
from shim.dockerd.facts import EngineFacts
from shim.dockerd.starting_tasks import TaskWatch
from shim.domain.errors import FailedPrecondition, ShimError
from shim.engine.client import DockerEngine
from shim.engine.counted import counted
from shim.engine.interface import Engine
from shim.hostfs.client import HostFs
from shim.logs.supervisor import LogSupervisor
from shim.node.status import METRICS_READY, STREAMING_ADDRESS_READY
from shim.nri.plugins import Plugins as NriPlugins
from shim.nri.plugins import Timeouts
from shim.oci.user_namespaces import UserNamespaces
from shim.own_exec.own_exec import OwnExec
from shim.runtime import ImagePuller, Runtime
from shim.stats.disk import LayerMeter
from shim.stats.images import StoreMeter
from shim.stats.sampler import Sampler
from shim.stream_sessions import serve_session
from shim.streaming.listener import Listener, listen
from shim.streaming.pace import SWITCH_INTERVAL
from shim.streaming.server import StreamServer
from shim.streaming.tokens import Tokens
from shim.view.node_view import NodeView
from shim.view.watch import Watcher

_STREAMS_GRACE = 1.5
"""Seconds for the processes of streaming sessions to end when the server stops: a restart should take 3 s."""

UMASK = 0o022
"""Set regardless of the caller's umask, because helpers and CNI plugins inherit it, and pods use the directories that
are made for host paths. Private files are created with an explicit mode."""
log = structlog.get_logger(__name__)


def serve(config: Config, *, reread: Reread) -> bool:
    """Serve the CRI until SIGTERM or SIGINT; a second signal kills the server. SIGHUP calls `reread`.

    After the first signal, RunPodSandbox calls in flight may finish and reads are still answered. The socket is gone
    only for the last moment, so a restart does not make the node not ready. Docker need not run: the node is not ready
    until it does. Raise ShimError if the server cannot start; return False if a RunPodSandbox had to be cut off, or if
    the shutdown failed.
    """
    started = threading.Event()
    try:
        return _serve(config, reread=reread, started=started)
    except ShimError as error:
        if not started.is_set():
            raise
        log.error("shutdown failed", error=error)  # not raised: callers repeat a start that failed
        return False


def _serve(config: Config, *, reread: Reread, started: threading.Event) -> bool:
    # Write the stacks of all threads to the log on a crash of the interpreter and on the signal of systemd's watchdog.
    faulthandler.enable()
    check_64_bit()
    sys.setswitchinterval(SWITCH_INTERVAL)
    prepare_types()
    raise_open_files_limit()
    os.umask(UMASK)
    dump = StateDump()
    watchdog = watchdog_seconds(os.environ)
    with (
        contextlib.closing(Reload(config, reread=reread)) as reload,
        handling_signals(dump, reload) as stop,
        state.locked_root_directory(config.root_directory),
        _open_listener(config) as listener,
        _runtime(config, Tokens(base_url=listener.base_url), dump=dump) as rt,
        guarding_loopback(rt),
        _killing_leaked_shims(rt) as leaks,
        _serve_metrics(rt, leaks),
        recovering(rt),
        cleaning_networks(rt),
        _stats_threads(rt),
        _serve_nri(rt, dump=dump),
        tracing(config, environ=os.environ) as interceptors,
        _serve_cri(rt, dump=dump, interceptors=interceptors) as server,
        _serve_streams(rt, listener, dump=dump),
    ):
        # These objects live as long as the server. Exempt them from garbage collection, which would pause RPCs.
        gc.collect()
        gc.freeze()
        log_low_limits(os.environ)
        notify("READY=1", os.environ)
        started.set()
        with _watchdog(watchdog, server=server, view=rt.view, dump=dump):
            stop.wait()
            for again in STOP_SIGNALS:
                signal.signal(again, signal.SIG_DFL)
            notify("STOPPING=1", os.environ)
            return server.drain(grace=config.shutdown_grace)


def _engine(config: Config, *, dump: StateDump) -> Engine:
    engine = DockerEngine(config.docker_endpoint, request_timeout=config.runtime_request_timeout)
    dump.add("docker connections", lambda: [engine.connections()])
    return counted(engine)


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
        tokens=rt.stream_tokens,
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
def _runtime(config: Config, stream_tokens: Tokens, *, dump: StateDump) -> Iterator[Runtime]:
    """Create the collaborators; keep the view and the CNI configuration current inside the block."""
    with contextlib.ExitStack() as ending:
        engine = _engine(config, dump=dump)
        ending.callback(engine.close)
        host_fs = HostFs(modules=HELPER_MODULES)
        host_fs.start()
        ending.callback(host_fs.stop)
        keyring = keyring_of_node(config, environ=os.environ, call=host_fs.call)
        pod_cidr = PodCidr(config.root_directory / state.POD_CIDR, default=config.pod_cidr)
        has_cni_conf = write_cni_conf(config, host_fs, pod_cidr)
        cni = ending.enter_context(running_cni(config, host_fs, pod_cidr))
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
            user_namespaces=UserNamespaces(facts, files=config.root_directory),
            own_exec=own_exec,
            criu=CriuSupport(own_exec, work=config.root_directory / state.CHECKPOINTING, environ=os.environ),
            cni=cni,
            host_fs=host_fs,
            nri=NriPlugins(
                Timeouts(registration=config.nri_plugin_registration_timeout, request=config.nri_plugin_request_timeout)
            ),
            stream_tokens=stream_tokens,
            puller=ImagePuller(keyring=keyring),
            deferred_checks=deferred_checks,
            tasks=tasks,
        )
        if not has_cni_conf:
            write_cni_conf_later(rt)
        ending.enter_context(_sync_view(rt, dump=dump))
        yield rt


@contextlib.contextmanager
def _sync_view(rt: Runtime, *, dump: StateDump) -> Iterator[None]:
    """Keep the view in sync with Docker inside the block; recover pods before the first sync."""
    watcher = Watcher(rt.engine, rt.view, on_connect=rt.facts.refresh, before_first_sync=partial(recover_pods, rt))
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


@contextlib.contextmanager
def _serve_nri(rt: Runtime, *, dump: StateDump) -> Iterator[None]:
    """Let NRI plugins see and change containers inside the block, if NRI is on."""
    if not rt.config.nri:
        yield
        return
    dump.add("NRI plugins", rt.nri.rows)
    with serving_plugins(rt):
        yield


@contextlib.contextmanager
def _killing_leaked_shims(rt: Runtime) -> Iterator[ShimLeaks]:
    """Kill leaked containerd-shims in a background thread."""
    leaks = ShimLeaks(rt)
    with background(leaks.watch, name="shim-leaks"):
        yield leaks


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
