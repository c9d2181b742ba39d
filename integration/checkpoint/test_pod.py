"""The containers of a pod continue in another pod, from a checkpoint of one moment."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import docker
import grpc
import pytest

from integration.checkpoint.test_checkpoint import layer_file
from integration.conftest import Served
from integration.cri import container_config, pod_config
from integration.node.criu import Criu
from integration.pods.kubelet import KUBELETS_PATHS, Kubelet, Pod, secured, unused_name
from integration.pods.user_namespaces import own_users
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

Code = grpc.StatusCode
OWN_PIDS = pb.NamespaceOption(pid=pb.CONTAINER)
# The file is never truncated, so that no reader finds it empty.
COUNTER = "i=0; while :; do i=$((i+1)); echo line $i; echo $i 1<> /state; sleep 0.1; done"


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored pod, and its containers by name."""

    pod: Pod
    containers: dict[str, str]


class Migration:
    """A pod, its checkpoint, and the pods restored from it."""

    def __init__(self, served: Served, kubelet: Kubelet, directory: Path, **fields: Any) -> None:
        self.served = served
        self.kubelet = kubelet
        self.directory = directory
        directory.mkdir(mode=0o700)
        self.pod = kubelet.pod(**fields)
        self.configs: dict[str, pb.ContainerConfig] = {}
        self.containers: dict[str, str] = {}

    def start(self, *command: str, **fields: Any) -> str:
        own: dict[str, Any] = {"image": self.kubelet.image, "command": command, **secured(namespace_options=OWN_PIDS)}
        config = container_config(unused_name("c"), **(own | fields))
        name = config.metadata.name
        self.configs[name] = config
        self.containers[name] = self.served.cri.create(self.pod.id, config, pod=self.pod.config)
        self.served.cri.start(self.containers[name])
        return name

    def counter(self, **fields: Any) -> str:
        name = self.start("sh", "-c", COUNTER, **fields)
        wait_until(lambda: self.count(self.containers[name]) > 2)
        return name

    def count(self, container: str) -> int:
        return int(self.kubelet.inside(container, "cat /state 2> /dev/null") or 0)

    def wait_past(self, container: str, number: int) -> None:
        wait_until(lambda: self.count(container) > number)

    def checkpoint(self, *names: str, **options: str) -> None:
        """Checkpoint the named containers, by default all."""
        ids = [self.containers[name] for name in names or self.containers]
        request = pb.CheckpointPodRequest(
            pod_sandbox_id=self.pod.id, output_path=str(self.directory), container_ids=ids, options=options
        )
        self.served.cri.runtime.CheckpointPod(request)

    def remove(self) -> None:
        self.served.cri.stop(self.pod.id)
        self.served.cri.remove(self.pod.id)

    def request(self) -> pb.RestorePodRequest:
        config = pod_config(unused_name("restored"))
        config.linux.CopyFrom(self.pod.config.linux)
        return pb.RestorePodRequest(
            checkpoint_path=str(self.directory),
            config=config,
            container_configs=self.configs.values(),
        )

    def restore(self, *, start: bool = True, options: Mapping[str, str] | None = None) -> Restored:
        request = self.request()
        request.options.update(options or {})
        made = self.served.cri.runtime.RestorePod(request)
        self.kubelet.adopt(made.pod_sandbox_id)
        containers = {each.name: each.container_id for each in made.restored_containers}
        assert containers.keys() == self.configs.keys()
        for container in containers.values() if start else ():
            self.served.cri.start(container)
        return Restored(Pod(made.pod_sandbox_id, request.config), containers)

    def assert_restores(self) -> Restored:
        """Checkpoint and remove the pod, restore it, and check that each counter continues."""
        self.checkpoint()
        at = {name: self.written(name) for name in self.configs}
        self.remove()
        restored = self.restore()
        for name, container in restored.containers.items():
            self.wait_past(container, at[name] + 2)
        return restored

    def written(self, name: str) -> int:
        """Return a container's number at the checkpoint, from the file in its layer."""
        place = list(self.configs).index(name)
        return int(layer_file(self.directory / str(place) / "rootfs-diff.tar", "state"))


@pytest.fixture
def migration(served: Served, kubelet: Kubelet, tmp_path: Path) -> Migration:
    return Migration(served, kubelet, tmp_path / "checkpoint")


def assert_no_files(served: Served) -> None:
    """Check that no file of a checkpoint or restore is left in the server's directory."""
    for name in ("checkpointing", "restoring"):
        assert list((served.dirs.state / name).glob("*")) == []


def test_containers_continue_in_another_pod(served: Served, migration: Migration) -> None:
    first, second = migration.counter(), migration.counter()
    migration.kubelet.inside(
        migration.containers[first], "echo written > /marker; rm /bin/wget; mkdir /d; ln -s a /d/s"
    )
    migration.checkpoint()
    at = {name: migration.written(name) for name in (first, second)}
    for name, container in migration.containers.items():
        migration.wait_past(container, at[name] + 2)
    migration.remove()

    restored = migration.restore(start=False)
    for name, container in restored.containers.items():
        assert served.cri.container_status(container).state == pb.CONTAINER_CREATED
        assert served.cri.container_status(container).metadata.name == name
        served.cri.start(container)
    for name, container in restored.containers.items():
        migration.wait_past(container, at[name] + 2)
        assert served.cri.container_status(container).state == pb.CONTAINER_RUNNING
    container = restored.containers[first]
    assert (
        migration.kubelet.inside(container, "cat /marker; readlink /d/s; [ -e /bin/wget ] || echo gone")
        == "written\na\ngone\n"
    )
    log = served.engine.api.logs(container).decode()
    assert f"line {at[first] + 3}\n" in log
    assert "line 1\n" not in log
    changed = {each["Path"]: each["Kind"] for each in served.engine.api.diff(container)}
    assert (changed["/marker"], changed["/bin/wget"]) == (1, 2)
    served.cri.stop_container(container)
    assert served.cri.container_status(container).exit_code == 137
    assert_no_files(served)


CAP_SYS_RESOURCE = 24
MASKED = "|".join(KUBELETS_PATHS["masked_paths"])
"""Paths on which a restore mounts the node's /dev/null, without Docker's options of the container's /dev."""
FACTS = r"""
cut -d' ' -f5- /proc/self/mountinfo | sed 's/ - .*//; s/ \(master\|shared\):[0-9]*//' > /dev/shm/mounts
grep -vE "^($MASKED) " /dev/shm/mounts | sort
for f in $(echo "$MASKED" | tr '|' ' '); do [ ! -s $f ] || [ -d $f ] || echo $f is not masked; done
grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/1/status
cat /proc/1/oom_score_adj; cut -d: -f1 /proc/1/cgroup; hostname; umask; cat /proc/1/limits
stat -c '%A %u %g %t %T %n' /dev/*; readlink /proc/1/cwd; cat /proc/1/attr/current 2> /dev/null
"""
"""Prints the privileges of a container: its mounts with their options, rights and limits."""


def has_capability(number: int) -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    [effective] = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")]
    return bool(effective >> number & 1)


@pytest.mark.parametrize("strict", [False, True])
def test_a_restored_container_gains_no_privileges(
    served: Served, migration: Migration, tmp_path: Path, *, strict: bool
) -> None:
    fields: dict[str, Any] = {"namespace_options": OWN_PIDS, "readonly_rootfs": strict, "no_new_privs": strict}
    if strict:
        fields["supplemental_groups"] = [7]
        if has_capability(CAP_SYS_RESOURCE):  # otherwise criu cannot read the limits of other users' processes
            fields["run_as_user"] = pb.Int64Value(value=1000)
        fields["capabilities"] = pb.Capability(drop_capabilities=["ALL"])
        fields["seccomp"] = pb.SecurityProfile(profile_type=pb.SecurityProfile.RuntimeDefault)
    for name in ("open", "closed"):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o777)
    mounts = [
        pb.Mount(host_path=str(tmp_path / "open"), container_path="/data"),
        pb.Mount(host_path=str(tmp_path / "closed"), container_path="/closed", mount_options=["noexec"], readonly=True),
    ]
    name = migration.start("sleep", "3600", mounts=mounts, **secured(**fields))
    facts = f"MASKED='{MASKED}'; {FACTS}"
    before = migration.kubelet.inside(migration.containers[name], facts)
    assert "/closed ro,noexec" in before
    migration.checkpoint()
    migration.remove()
    container = migration.restore().containers[name]
    assert migration.kubelet.inside(container, facts).splitlines() == before.splitlines()
    pause = served.engine.api.inspect_container(served.cri.container_status(container).id)["HostConfig"]["NetworkMode"]
    pids = [served.engine.api.inspect_container(each)["State"]["Pid"] for each in (container, pause.partition(":")[2])]
    for kind in ("net", "ipc"):
        assert len({(Path(f"/proc/{pid}/ns") / kind).readlink() for pid in pids}) == 1


def test_a_shared_process_namespace_is_restored(migration: Migration) -> None:
    for _ in range(2):
        migration.counter(**secured(namespace_options=pb.NamespaceOption(pid=pb.POD)))
    restored = migration.assert_restores()
    [first, second] = restored.containers.values()
    assert migration.kubelet.inside(first, "ps -o args | grep -c 'i=$((i+1))'").strip() >= "2"
    assert migration.kubelet.cri.exec(second, "true").exit_code == 0


def test_a_restored_container_leaves_the_ids_of_the_others_free(migration: Migration) -> None:
    shared = secured(namespace_options=pb.NamespaceOption(pid=pb.POD))
    first = migration.counter(**shared)
    second = migration.start("sh", "-c", "for i in $(seq 50); do sleep 3600 & done; wait", **shared)
    ids = "ps -o pid,args | grep 'sleep 3600$'"
    wait_until(lambda: migration.kubelet.inside(migration.containers[second], ids).count("\n") == 50)
    expected = migration.kubelet.inside(migration.containers[second], ids)
    migration.checkpoint()
    migration.remove()
    restored = migration.restore(start=False).containers
    migration.served.cri.start(restored[first])
    migration.kubelet.inside(restored[first], "for i in $(seq 100); do sleep 600 > /dev/null 2>&1 & done")
    migration.served.cri.start(restored[second])
    assert migration.kubelet.inside(restored[second], ids) == expected


ORPHAN = "(sh -c 'while :; do sleep 1; done' &); exec sleep 3600"


def test_a_process_that_criu_would_omit_is_reported(migration: Migration) -> None:
    migration.start("sh", "-c", ORPHAN, **secured(namespace_options=pb.NamespaceOption(pid=pb.POD)))
    wait_until(lambda: "while" in migration.kubelet.inside(next(iter(migration.containers.values())), "ps -o args"))
    code, text = failed(migration.checkpoint)
    assert code == Code.FAILED_PRECONDITION
    assert "has lost its parent" in text
    assert list(migration.directory.iterdir()) == []


def test_a_terminal_is_restored(served: Served, migration: Migration) -> None:
    name = migration.counter(tty=True, stdin=True)
    restored = migration.assert_restores()
    container = restored.containers[name]
    at = migration.count(container)
    wait_until(lambda: f"line {at + 2}\r\n".encode() in served.engine.api.logs(container))


def test_a_restored_container_has_the_volumes_of_the_new_pod(migration: Migration, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    mount = pb.Mount(host_path=str(tmp_path / "empty"), container_path="/data")
    command = "exec 3>> /data/lines; i=0; while :; do i=$((i+1)); echo $i 1<> /state; echo $i >&3; sleep 0.1; done"
    name = migration.start("sh", "-c", command, mounts=[mount])
    wait_until(lambda: migration.count(migration.containers[name]) > 2)
    migration.checkpoint()
    at = migration.written(name)
    migration.remove()
    # The volume is moved too, as a person who migrates a pod does.
    shutil.copytree(tmp_path / "empty", tmp_path / "other")
    lines = (tmp_path / "other/lines").read_text().splitlines(keepends=True)
    (tmp_path / "other/lines").write_text("".join(lines[:at]))
    migration.configs[name].mounts[0].host_path = str(tmp_path / "other")
    restored = migration.restore()
    wait_until(lambda: len((tmp_path / "other/lines").read_text().splitlines()) > at + 2)
    assert migration.count(restored.containers[name]) > at
    assert len((tmp_path / "empty/lines").read_text().splitlines()) >= at


def test_a_volume_of_an_image_is_restored(served: Served, migration: Migration) -> None:
    if served.engine.name in ("20.10", "26"):
        pytest.skip("the engine has no image volumes")
    mount = pb.Mount(image=pb.ImageSpec(image=migration.kubelet.image), container_path="/image", readonly=True)
    script = f"exec 3< /image/bin/busybox; {COUNTER}"
    name = migration.start("sh", "-c", script, mounts=[mount])
    wait_until(lambda: migration.count(migration.containers[name]) > 2)
    container = migration.assert_restores().containers[name]
    assert migration.kubelet.inside(container, "cmp /proc/1/fd/3 /image/bin/busybox && echo same") == "same\n"
    assert "Read-only" in migration.kubelet.inside(container, "touch /image/x")


def test_a_missing_file_in_a_volume_is_reported_at_the_start(
    served: Served, migration: Migration, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    mount = pb.Mount(host_path=str(tmp_path / "empty"), container_path="/data")
    name = migration.start("sh", "-c", f"exec 3>> /data/lines; {COUNTER}", mounts=[mount])
    wait_until(lambda: migration.count(migration.containers[name]) > 2)
    migration.checkpoint()
    migration.remove()
    (tmp_path / "empty/lines").unlink()
    restored = migration.restore(start=False)
    code, text = failed(partial(served.cri.start, restored.containers[name]))
    assert code != Code.OK
    assert "criu: " in text
    assert "data/lines" in text
    status = served.cri.container_status(restored.containers[name])
    assert (status.state, status.reason) == (pb.CONTAINER_EXITED, "StartError")


def test_a_read_only_root_is_restored(migration: Migration, tmp_path: Path) -> None:
    volume = tmp_path / "empty"
    volume.mkdir()
    mount = pb.Mount(host_path=str(volume), container_path="/data")
    context = secured(readonly_rootfs=True, namespace_options=OWN_PIDS)
    # No file is open when the container is paused: the file in the volume would be another one at the restore.
    counter = COUNTER.replace("echo $i 1<> /state", "mkdir /data/$i")
    name = migration.start("sh", "-c", counter, mounts=[mount], **context)
    wait_until((volume / "1").exists)
    migration.checkpoint()
    migration.remove()
    for path in volume.iterdir():
        path.rmdir()
    restored = migration.restore()
    wait_until(lambda: any(volume.iterdir()))
    assert not (volume / "1").exists()
    assert "Read-only" in migration.kubelet.inside(restored.containers[name], "echo x > /x")


def test_a_hundred_mebibytes_of_memory_are_restored(migration: Migration) -> None:
    name = migration.counter()
    script = (
        "x=$(head -c 104857600 /dev/zero | tr '\\0' y); i=0; while :; do i=$((i+1)); echo $i $"
        "{#x} > /size; sleep 0.1; done"
    )
    big = migration.start("sh", "-c", script)
    wait_until(lambda: " 104857600" in migration.kubelet.inside(migration.containers[big], "cat /size"), seconds=60)
    migration.checkpoint()
    migration.remove()
    restored = migration.restore()
    before = migration.kubelet.inside(restored.containers[big], "cat /size")
    wait_until(lambda: migration.kubelet.inside(restored.containers[big], "cat /size") not in ("", before))
    assert " 104857600" in migration.kubelet.inside(
        restored.containers[big], "sleep 0.05; cat /size; sleep 0.06; cat /size"
    )
    assert migration.count(restored.containers[name]) > 2


def test_a_deleted_open_file_is_restored(migration: Migration) -> None:
    script = f"echo kept > /tmp/f; exec 3< /tmp/f; rm /tmp/f; {COUNTER}"
    name = migration.start("sh", "-c", script)
    wait_until(lambda: migration.count(migration.containers[name]) > 2)
    restored = migration.assert_restores()
    assert migration.kubelet.inside(restored.containers[name], "cat /proc/1/fd/3") == "kept\n"


def test_established_connections_are_closed_or_refused(served: Served, migration: Migration) -> None:
    script = (
        "nc -ll -p 9 -e cat & (mkfifo /p; exec 4<> /p; sleep 0.5; nc 127.0.0.1 9 < /p; echo closed > /closed) & "
        + COUNTER
    )
    name = migration.start("sh", "-c", script)
    old = migration.containers[name]
    wait_until(lambda: "ESTABLISHED" in migration.kubelet.inside(old, "netstat -tn"))
    migration.checkpoint()
    migration.remove()
    code, text = failed(lambda: migration.restore(options={"tcp-established": "refuse"}))
    assert (code, "established TCP connections" in text) == (Code.FAILED_PRECONDITION, True)
    assert_no_files(served)
    restored = migration.restore()
    container = restored.containers[name]
    wait_until(lambda: migration.kubelet.inside(container, "cat /closed") == "closed\n")
    assert "ESTABLISHED" not in migration.kubelet.inside(container, "netstat -tn")
    at = migration.count(container)
    wait_until(lambda: migration.count(container) > at + 2)


def test_a_restored_container_behaves_like_any_other(served: Served, migration: Migration) -> None:
    name = migration.counter()
    restored = migration.assert_restores()
    container = restored.containers[name]
    served.engine.api.pause(container)
    served.engine.api.unpause(container)
    at = migration.count(container)
    wait_until(lambda: migration.count(container) > at + 2)
    again = Migration.__new__(Migration)
    again.__dict__.update(migration.__dict__)
    again.directory = migration.directory.with_name("again")
    again.directory.mkdir(mode=0o700)
    again.pod, again.containers = restored.pod, restored.containers
    again.assert_restores()


def test_a_paused_container_is_refused_and_the_others_keep_running(served: Served, migration: Migration) -> None:
    _, second = migration.counter(), migration.counter()
    served.engine.api.pause(migration.containers[second])
    code, text = failed(migration.checkpoint)
    assert (code, "it is paused" in text) == (Code.FAILED_PRECONDITION, True)
    served.engine.api.unpause(migration.containers[second])
    for container in migration.containers.values():
        migration.wait_past(container, migration.count(container) + 2)
    assert list(migration.directory.iterdir()) == []


def test_a_failure_of_criu_leaves_no_file_and_all_containers_running(
    served: Served, migration: Migration, criu: Criu, tmp_path: Path
) -> None:
    migration.counter()
    migration.counter()
    # The dump of the second container fails.
    criu.install(f'case "$1" in swrk) mkdir {tmp_path}/first 2> /dev/null || exit 1;; esac')
    assert failed(migration.checkpoint)[0] == Code.FAILED_PRECONDITION
    assert (tmp_path / "first").exists()
    assert list(migration.directory.iterdir()) == []
    assert_no_files(served)
    for container in migration.containers.values():
        migration.wait_past(container, migration.count(container) + 2)


def failed(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), str(caught.value.details())


def refused(migration: Migration, **fields: Any) -> tuple[grpc.StatusCode, str]:
    """Request another pod from the checkpoint, with these fields, and return the error."""
    request = migration.request()
    for field, value in fields.items():
        setattr(request, field, value)
    return failed(partial(migration.served.cri.runtime.RestorePod, request))


def test_impossible_restores_are_refused_and_leave_nothing(served: Served, migration: Migration) -> None:
    name = migration.counter()
    migration.counter()
    migration.checkpoint()
    before = {container.id for container in served.cri.containers()}
    assert refused(migration, runtime_handler="none")[0] == Code.INVALID_ARGUMENT
    assert refused(migration, checkpoint_path=f"{migration.directory}/none")[0] == Code.FAILED_PRECONDITION
    request = migration.request()
    request.options["fast"] = "1"
    assert failed(partial(served.cri.runtime.RestorePod, request))[0] == Code.INVALID_ARGUMENT
    request = migration.request()
    del request.container_configs[1]
    assert failed(partial(served.cri.runtime.RestorePod, request))[0] == Code.INVALID_ARGUMENT
    request = migration.request()
    request.container_configs[0].linux.security_context.privileged = True
    assert "security_context" in failed(partial(served.cri.runtime.RestorePod, request))[1]
    request = migration.request()
    request.container_configs[0].mounts.add(host_path="/tmp", container_path="/new")
    assert "/new" in failed(partial(served.cri.runtime.RestorePod, request))[1]
    request = migration.request()
    request.config.linux.security_context.namespace_options.CopyFrom(own_users())
    assert "user namespace" in failed(partial(served.cri.runtime.RestorePod, request))[1]
    image = next((migration.directory / "0/checkpoint").glob("core-*.img"))
    image.write_bytes(image.read_bytes() + b"x")
    assert "another size" in refused(migration)[1]
    assert {container.id for container in served.cri.containers()} == before
    assert len(served.cri.sandboxes()) == 1
    assert_no_files(served)
    migration.wait_past(migration.containers[name], migration.count(migration.containers[name]) + 1)


def test_a_checkpoint_of_some_containers_does_not_affect_the_others(migration: Migration) -> None:
    first, second = migration.counter(), migration.counter()
    migration.checkpoint(second)
    migration.remove()
    del migration.configs[first]
    restored = migration.restore()
    assert restored.containers.keys() == {second}
    container = restored.containers[second]
    migration.wait_past(container, migration.count(container) + 2)


def test_a_checkpoint_needs_an_empty_directory_and_containers_of_the_pod(
    kubelet: Kubelet, migration: Migration
) -> None:
    name = migration.counter()
    (migration.directory / "kept").touch()
    code, text = failed(migration.checkpoint)
    assert (code, "is not empty" in text) == (Code.FAILED_PRECONDITION, True)
    assert (migration.directory / "kept").exists()
    (migration.directory / "kept").unlink()
    migration.directory.chmod(0o777)
    assert "nobody else may write" in failed(migration.checkpoint)[1]
    migration.directory.chmod(0o700)
    assert failed(partial(migration.checkpoint, fast="1"))[0] == Code.INVALID_ARGUMENT
    migration.containers[name] = kubelet.started(kubelet.pod())
    assert "is not in pod sandbox" in failed(migration.checkpoint)[1]
    assert list(migration.directory.iterdir()) == []


def test_after_a_crash_of_the_server_the_containers_run_and_no_file_is_left(
    served: Served, migration: Migration, criu: Criu
) -> None:
    names = [migration.counter(), migration.counter()]
    criu.install('case "$1" in swrk) sleep 3;; esac')
    ids = [migration.containers[name] for name in names]
    request = pb.CheckpointPodRequest(
        pod_sandbox_id=migration.pod.id, output_path=str(migration.directory), container_ids=ids
    )
    call = served.cri.runtime.CheckpointPod.future(request)
    wait_until((migration.directory / "0/checkpoint").exists)
    served.server.kill()
    assert call.exception() is not None
    wait_until(lambda: list(migration.directory.iterdir()) == [])
    served.revive()
    for container in ids:
        migration.wait_past(container, migration.count(container) + 2)
    assert_no_files(served)


def test_a_restored_container_can_be_started_by_the_next_server(served: Served, migration: Migration) -> None:
    name = migration.counter()
    migration.checkpoint()
    migration.remove()
    at = migration.written(name)
    container = migration.restore(start=False).containers[name]
    served.server.kill()
    served.revive()
    served.cri.start(container)
    migration.wait_past(container, at + 2)
    assert_no_files(served)


def test_docker_does_not_start_a_restored_container_again(served: Served, migration: Migration) -> None:
    name = migration.counter()
    container = migration.assert_restores().containers[name]
    served.engine.api.kill(container)
    wait_until(lambda: served.cri.container_status(container).state == pb.CONTAINER_EXITED)
    with pytest.raises(docker.errors.APIError, match="its checkpoint has been used"):
        served.engine.api.start(container)
