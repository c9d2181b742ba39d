"""An Engine in memory. It passes the same contract tests as the real Engine (tests/engine/contract.py).

Containers have no process: they run until they are stopped, killed, removed, or `exit_container` is called. Tests
order failures with `fail_next`, make calls wait with `held`, cut the connection with `disconnect`, and read `calls`.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from shim.domain.errors import FailedPrecondition, NotFound
from shim.engine.answers import ContainerInspect, ContainerSummary, EngineInfo, Event, ExecInspect, PathStat, Runtime
from shim.engine.errors import NameConflict, RemovalInProgress
from shim.engine.interface import AttachOptions, JsonObject, ProcessStream
from tests.fakes import engine_files
from tests.fakes.engine_images import FakeImages
from tests.fakes.engine_state import FakeContainer, FakeExec, FakeInput, hex_id, shown_detach_keys

FIRST_PID = 2**22 + 1
"""Above the kernel's largest pid, so that it never names a real process."""

SIGNALS = {"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGKILL": 9, "SIGUSR1": 10, "SIGUSR2": 12, "SIGTERM": 15}


class FakeEngine(FakeImages):
    """See `shim.engine.interface.Engine`. Thread-safe."""

    def __init__(self, *, api_version: tuple[int, int] = (1, 51), cgroup_driver: str = "cgroupfs") -> None:
        super().__init__()
        self.version = api_version
        self.engine_info = EngineInfo(
            id="fake",
            server_version="28.5.2",
            architecture="x86_64",
            cgroup_driver=cgroup_driver,
            docker_root_dir="/var/lib/docker",
            driver="overlay2",
            runtimes={"runc": Runtime(path="runc")},
            default_runtime="runc",
            security_options=["name=seccomp,profile=builtin"],
        )
        self.mount_label = ""
        """SELinux label of new containers."""
        self.discards: dict[str, object] = {}
        """Limits that the kernel does not support, by name in `HostConfig`, and the values that Docker sets instead."""
        self.execs: dict[str, FakeExec] = {}
        self.attachments: list[tuple[str, AttachOptions]] = []
        self._serial = itertools.count(1)

    # Actions of tests

    def exit_container(self, container_id: str, *, exit_code: int = 0, oom_killed: bool = False) -> None:
        """Let the container's process exit by itself."""
        with self._changed:
            container = self._container(container_id)
            container.oom_killed = oom_killed
            if oom_killed:
                self._emit("container", "oom", container.id, container.labels)
            self._end(container, exit_code)

    def rename_container(self, container_id: str, *, name: str) -> None:
        """Rename a container, as `docker rename` does."""
        with self._changed:
            container = self._container(container_id)
            container.name = name
            self._emit("container", "rename", container.id, container.labels)

    def exit_exec(self, exec_id: str, *, exit_code: int) -> None:
        """Let an endless exec exit."""
        with self._changed:
            self._end_exec(self._exec(exec_id), exit_code)

    def emit(self, kind: str, action: str, actor_id: str, attributes: Mapping[str, str] | None = None) -> None:
        """Send an event without a call."""
        with self._changed:
            self._emit(kind, action, actor_id, attributes or {})

    # The Engine

    @property
    def api_version(self) -> tuple[int, int]:
        return self.version

    def ping(self) -> None:
        with self._entered("ping"):
            return

    def info(self) -> EngineInfo:
        with self._entered("info"):
            return self.engine_info

    def daemon_pid(self) -> int:
        return os.getpid()

    def create_container(self, *, name: str, body: JsonObject) -> str:
        with self._entered("create_container", name):
            image = self._find_image(str(body.get("Image", "")), what=f"create container {name}: image")
            self._check_name_free(name, what=f"create container {name}")
            made = FakeContainer(
                id=hex_id(f"{name}-{next(self._serial)}"),
                name=name,
                body={**body, "HostConfig": self._kept(body.get("HostConfig") or {})},
                image=image,
                created=self._now(),
                mount_label=self.mount_label,
            )
            self.containers[made.id] = made
            self._emit("container", "create", made.id, made.labels)
            return made.id

    def start_container(self, container_id: str) -> None:
        with self._entered("start_container", container_id):
            container = self._container(container_id)
            if container.running:
                return
            self._check_joined(container)
            container.status, container.exit_code, container.oom_killed = "running", 0, False
            container.pid = FIRST_PID + next(self._serial)
            container.started = self._now()
            container.finished = 0
            self._emit("container", "start", container.id, container.labels)

    def stop_container(self, container_id: str, *, grace: int) -> None:
        with self._entered("stop_container", container_id):
            container = self._container(container_id)
            if container.running:
                self._end(container, 143 if grace else 137)
                self._emit("container", "stop", container.id, container.labels)

    def kill_container(self, container_id: str, *, signal: str) -> None:
        with self._entered("kill_container", container_id):
            container = self._container(container_id)
            if not container.running:
                raise FailedPrecondition(f"kill container {container_id}: it is not running")
            self._emit("container", "kill", container.id, container.labels)
            number = int(signal) if signal.isdecimal() else SIGNALS[f"SIG{signal.removeprefix('SIG')}"]
            if number in (SIGNALS["SIGKILL"], SIGNALS["SIGTERM"]):
                self._end(container, 128 + number)

    def wait_removed(self, container_id: str) -> None:
        with self._entered("wait_removed", container_id):
            self._wait(lambda: container_id not in self.containers, f"wait for removal of {container_id}")

    def remove_container(self, container_id: str) -> None:
        with self._changed:
            self._arrive("remove_container", container_id)
            container = self._container(container_id)
            if container.status == "removing":
                raise RemovalInProgress(f"remove container {container_id}: removal is already in progress")
            if container.running:
                self._end(container, 137)
            before, container.status = container.status, "removing"
            try:
                self._wait_gates("remove_container", container_id)
            except BaseException:
                container.status = before
                raise
            del self.containers[container.id]
            self._emit("container", "destroy", container.id, container.labels)
            self._answer("remove_container")

    def update_container(self, container_id: str, *, body: JsonObject) -> None:
        with self._entered("update_container", container_id):
            container = self._container(container_id)
            container.host.update({name: value for name, value in body.items() if name not in self.discards})
            self._emit("container", "update", container.id, container.labels)

    def inspect_container(self, container_id: str) -> ContainerInspect:
        with self._entered("inspect_container", container_id):
            found = self._container(container_id)
            execs = [
                each.id for each in self.execs.values() if each.container_id == found.id and each.exit_code is None
            ]
            return msgspec.structs.replace(found.inspect(), exec_ids=execs or None)

    def list_containers(self) -> list[ContainerSummary]:
        with self._entered("list_containers"):
            return [container.summary() for container in self.containers.values()]

    def stat_path(self, container_id: str, path: str) -> PathStat | None:
        with self._entered("stat_path", container_id):
            return engine_files.stat_path(self._container(container_id).image.files, path)

    @contextmanager
    def archive(self, container_id: str, path: str) -> Iterator[Iterator[bytes]]:
        with self._entered("archive", container_id):
            content = engine_files.archive(self._container(container_id).image.files, path)
            if content is None:
                raise NotFound(f"read {path} in container {container_id}: nothing is there")
        yield iter([content[:700], content[700:]])

    def create_exec(self, container_id: str, *, body: JsonObject) -> str:
        with self._entered("create_exec", container_id):
            container = self._container(container_id)
            if not container.running:
                raise FailedPrecondition(f"create exec in {container_id}: container is not running")
            exec_id = hex_id(f"exec-{next(self._serial)}")
            script = self._script_for(container.id, list(body.get("Cmd") or []))
            self.execs[exec_id] = FakeExec(id=exec_id, container_id=container.id, body=body, script=script)
            return exec_id

    @contextmanager
    def start_exec(
        self, exec_id: str, *, tty: bool = False, size: tuple[int, int] | None = None
    ) -> Iterator[ProcessStream]:
        with self._entered("start_exec", exec_id):
            started = self._exec(exec_id)
            assert tty == bool(started.body.get("Tty"))
            assert size is None or (tty and self.version >= (1, 42))
            started.size = size or started.size
            started.running = True
        stream = FakeProcessStream(self, started.stdin, lambda closed: self._frames(started, closed))
        try:
            yield stream
        finally:
            stream.close()

    def resize_exec(self, exec_id: str, *, width: int, height: int) -> None:
        with self._entered("resize_exec", exec_id):
            found = self._exec(exec_id)
            if not found.running:
                raise FailedPrecondition(f"resize the terminal of exec {exec_id}: it does not run")
            found.size = (width, height)

    @contextmanager
    def attach_container(self, container_id: str, *, options: AttachOptions) -> Iterator[ProcessStream]:
        with self._entered("attach_container", container_id):
            container = self._container(container_id)
            if not container.running:
                raise FailedPrecondition(f"attach to container {container_id}: it is not running")
        self.attachments.append((container.id, options))
        stream = FakeProcessStream(self, container.stdin, lambda closed: self._container_frames(container, closed))
        container.attached += 1
        try:
            yield stream
        finally:
            stream.close()
            container.attached -= 1

    def resize_container(self, container_id: str, *, width: int, height: int) -> None:
        with self._entered("resize_container", container_id):
            container = self._container(container_id)
            if not container.running:
                raise FailedPrecondition(f"resize the terminal of container {container_id}: it is not running")
            container.size = (width, height)

    def inspect_exec(self, exec_id: str) -> ExecInspect:
        with self._entered("inspect_exec", exec_id):
            found = self._exec(exec_id)
            return ExecInspect(
                running=found.running,
                exit_code=found.exit_code,
                pid=found.script.pid,
                detach_keys=shown_detach_keys(str(found.body.get("DetachKeys", ""))),
            )

    @contextmanager
    def events(self, *, since: int | None) -> Iterator[Iterator[Event]]:
        with self._entered("events"):
            first = len(self._events)
            if since is not None:
                first = next((i for i, event in enumerate(self._events) if event.time_nano >= since), first)
            connection = self._connection
        closed = threading.Event()
        try:
            yield self._events_from(first, closed, connection)
        finally:
            self._close(closed)

    def close(self) -> None:
        self.calls.append(("close", ""))

    # Implementation

    def _container(self, id_or_name: str) -> FakeContainer:
        for container in self.containers.values():
            if container.name == id_or_name.removeprefix("/") or (id_or_name and container.id.startswith(id_or_name)):
                return container
        raise NotFound(f"no such container: {id_or_name}")

    def _kept(self, host: JsonObject) -> JsonObject:
        return {name: self.discards.get(name, value) for name, value in host.items()}

    def _check_name_free(self, name: str, *, what: str) -> None:
        holder = next((it for it in self.containers.values() if it.name == name), None)
        if holder is not None:
            raise NameConflict(f"{what}: the name is in use by container {holder.id}", holder=holder.id)

    def _check_joined(self, container: FakeContainer) -> None:
        kind, _, joined = str(container.host.get("NetworkMode", "")).partition(":")
        if kind == "container" and not self._container(joined).running:
            raise FailedPrecondition(f"start container {container.id}: cannot join network of a non running container")

    def _exec(self, exec_id: str) -> FakeExec:
        try:
            return self.execs[exec_id]
        except KeyError:
            raise NotFound(f"no such exec instance: {exec_id}") from None

    def _end(self, container: FakeContainer, exit_code: int) -> None:
        container.status, container.exit_code, container.pid = "exited", exit_code, 0
        container.finished = self._now()
        for begun in [it for it in self.execs.values() if it.container_id == container.id]:
            if begun.running:
                begun.running, begun.exit_code = False, 137
            elif begun.exit_code is None:  # Docker forgets execs that never ran
                del self.execs[begun.id]
        self._emit("container", "die", container.id, {**container.labels, "exitCode": str(exit_code)})

    def _events_from(self, first: int, closed: threading.Event, connection: int) -> Iterator[Event]:
        for number in itertools.count(first):
            event = self._event_at(number, closed, connection)
            if event is None:
                return
            yield event

    def _event_at(self, number: int, closed: threading.Event, connection: int) -> Event | None:
        with self._changed:
            self._wait(lambda: closed.is_set() or number < len(self._events), "watch events", connection=connection)
            return None if closed.is_set() else self._events[number]

    def _frames(self, started: FakeExec, closed: threading.Event) -> Iterator[tuple[int, bytes]]:
        script = started.script
        for frame in started.unread:
            if closed.is_set():
                return
            started.taken += 1
            yield frame
        if script.echo:
            yield from self._echo(started.stdin, lambda: closed.is_set() or not started.running)
        if script.prints_size:
            self._wait_input(started.stdin, lambda: closed.is_set() or not started.running)
            yield 1, f"{started.size[1]} {started.size[0]}\r\n".encode()
        with self._changed:
            if not script.endless and not closed.is_set():
                self._end_exec(started, script.exit_code)
            self._wait(lambda: closed.is_set() or not started.running, f"exec {started.id}")

    def _container_frames(self, container: FakeContainer, closed: threading.Event) -> Iterator[tuple[int, bytes]]:
        """Yield the container's output: each process echoes like `cat`."""
        for frame in container.output:
            if closed.is_set():
                return
            yield frame
        yield from self._echo(container.stdin, lambda: closed.is_set() or not container.running)
        with self._changed:
            if container.stdin.ended and container.body.get("StdinOnce") and container.running:
                self._end(container, 0)
            self._wait(lambda: closed.is_set() or not container.running, f"attach to {container.id}")

    def _echo(self, stdin: FakeInput, ended: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        while True:
            self._wait_input(stdin, ended)
            if data := stdin.take():
                yield 1, data
            elif stdin.ended or ended():
                return

    def _wait_input(self, stdin: FakeInput, ended: Callable[[], bool]) -> None:
        with self._changed:
            self._wait(lambda: bool(stdin.data) or stdin.ended or ended(), "read input")

    def _end_exec(self, ended: FakeExec, exit_code: int) -> None:
        if ended.running:
            ended.running, ended.exit_code = False, exit_code
            self._changed.notify_all()

    def _close(self, closed: threading.Event) -> None:
        closed.set()
        self._wake()


class FakeProcessStream:
    """See `shim.engine.interface.ProcessStream`."""

    def __init__(
        self,
        engine: FakeEngine,
        stdin: FakeInput,
        frames: Callable[[threading.Event], Iterator[tuple[int, bytes]]],
    ) -> None:
        self._engine = engine
        self._stdin = stdin
        self._closed = threading.Event()
        self._begin = frames
        self._frames = frames(self._closed)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        self._frames = self._begin(self._closed)  # a stream that a scope has ended cannot go on
        return self._frames

    def read(self) -> bytes:
        return next((data for _, data in self._frames), b"")

    def write(self, data: bytes | memoryview) -> None:
        with self._engine._changed:
            self._stdin.data += data
            self._engine._changed.notify_all()

    def close_stdin(self) -> None:
        with self._engine._changed:
            self._stdin.ended = True
            self._engine._changed.notify_all()

    def close(self) -> None:
        self._closed.set()
        self._engine._wake()
