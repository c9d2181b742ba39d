import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from integration.conftest import Images, NodeDirs, make_engine
from integration.node.engine import Engine, answers
from integration.node.images import BUSYBOX, busybox_image, image_id, load, pause_image
from integration.node.isolation import OUTSIDE, Node
from integration.node.mounts import mounts_below
from integration.node.registry import Registry
from integration.waiting import exit_code, wait_until


@contextmanager
def running(engine: Engine, image: str, command: list[str], *, pid_mode: str | None = None) -> Iterator[str]:
    """Run a container without a network and yield its id."""
    api = engine.api
    host_config = api.create_host_config(network_mode="none", pid_mode=pid_mode)
    container = api.create_container(image, command, host_config=host_config)["Id"]
    try:
        api.start(container)
        yield container
    finally:
        api.remove_container(container, force=True)


def output(engine: Engine, image: str, command: list[str], *, pid_mode: str | None = None) -> str:
    with running(engine, image, command, pid_mode=pid_mode) as container:
        engine.api.wait(container, timeout=30)
        return engine.api.logs(container).decode()


def test_each_engine_answers_its_version(engine: Engine) -> None:
    assert engine.version.startswith(engine.name.partition("-")[0])
    assert engine.api.info()["CgroupDriver"] == engine.cgroup_driver


def test_each_engine_runs_a_container_without_network(engine: Engine, images: Images) -> None:
    listing = output(engine, images.busybox, ["ls", "/sys/class/net"])

    assert listing.split() == ["lo"]


def test_containers_are_below_the_cgroup_of_the_isolation(engine: Engine, images: Images) -> None:
    with running(engine, images.busybox, ["sleep", "60"]) as container:
        pid = engine.api.inspect_container(container)["State"]["Pid"]
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()

    assert any(line.endswith(engine.cgroup_of(container)) for line in groups)


@pytest.fixture(params=["as built here", "shell"])
def pause(request: pytest.FixtureRequest, engine: Engine, images: Images, node: Node) -> str:
    """Return the pause image, or the variant for a machine without a C compiler."""
    if request.param == "as built here":
        return images.pause
    shell = replace(pause_image(node.busybox, compiler=None), reference="node.test/pause:shell")
    load(engine.api, shell)
    return shell.reference


def test_pause_exits_at_once_on_sigterm(engine: Engine, pause: str) -> None:
    with running(engine, pause, []) as container:
        pid = engine.api.inspect_container(container)["State"]["Pid"]
        wait_until(lambda: heeds_sigterm(pid))
        engine.api.stop(container, timeout=20)
        state = engine.api.inspect_container(container)["State"]

    assert state["ExitCode"] == 0


def heeds_sigterm(pid: int) -> bool:
    """Return whether pause handles SIGTERM yet: process 1 of a container ignores signals without a handler."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    if fields["Name"] == "pause":
        return fields["State"].startswith("S")  # it sleeps only while it waits for signals
    caught = int(fields["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1
    return bool(caught) and not fields["Name"].startswith("runc")


def test_pause_reaps_orphans_of_a_shared_pid_namespace(engine: Engine, images: Images, pause: str) -> None:
    # The inner shell leaves a child, whose new parent is pause. The child's pid stays in use until pause reaps it.
    leave = "sh -c 'true & echo $! >/tmp/orphan'"
    script = f"{leave}; while kill -0 $(cat /tmp/orphan) 2>/dev/null; do usleep 20000; done; echo collected"
    with running(engine, pause, []) as sandbox:
        assert output(engine, images.busybox, ["sh", "-c", script], pid_mode=f"container:{sandbox}") == "collected\n"


def test_the_client_stays_valid_over_a_restart(engine: Engine, images: Images) -> None:
    before = image_id(engine.api, images.busybox)
    engine.restart()

    assert before is not None
    assert image_id(engine.api, images.busybox) == before


def test_a_stopped_engine_does_not_answer(engine: Engine) -> None:
    engine.stop()
    try:
        assert not answers(engine.socket)
    finally:
        engine.start()


def test_a_crashed_engine_can_be_started_again(engine: Engine, images: Images) -> None:
    with running(engine, images.pause, []) as container:
        engine.kill()
        engine.start()
        # Without live-restore a new dockerd ends containers that still run.
        assert engine.api.inspect_container(container)["State"]["Running"] is False


@pytest.mark.parametrize("crashed", [False, True], ids=["running", "crashed"])
def test_a_closed_engine_leaves_no_mount_and_no_container(engine: Engine, node: Node, crashed: bool) -> None:
    closed = make_engine(node, engine.name, variant="-closed", settings={"live-restore": True})
    closed.start()
    try:
        load(closed.api, busybox_image(node.busybox))
        host = closed.api.create_host_config(network_mode="host")
        container = closed.api.create_container(BUSYBOX, ["sleep", "3600"], host_config=host)["Id"]
        closed.api.start(container)
        pid = closed.api.inspect_container(container)["State"]["Pid"]
        assert closed.home / "exec/netns/default" in {mount.path for mount in mounts_below(closed.home)}
        if crashed:
            closed.kill()
    finally:
        closed.close()

    assert mounts_below(closed.home) == []
    assert not Path(f"/proc/{pid}").exists()


def test_engines_of_the_same_name_have_separate_directories(engine: Engine, node: Node) -> None:
    homes = {make_engine(node, engine.name).home for _ in range(3)}

    assert len(homes | {engine.home}) == 4


def test_a_pushed_image_can_be_pulled_from_the_registry(engine: Engine, images: Images, registry: Registry) -> None:
    reference = registry.push(engine.api, images.busybox, name="smoke/busybox:v1")
    engine.api.pull(reference)

    assert output(engine, reference, ["echo", "pulled"]) == "pulled\n"
    engine.api.remove_image(reference)


def test_the_private_registry_requires_its_password(engine: Engine, images: Images, private_registry: Registry) -> None:
    reference = private_registry.push(engine.api, images.busybox, name="smoke/secret")
    with pytest.raises(docker.errors.APIError, match=r"no basic auth|unauthorized|authorization"):
        engine.api.pull(reference)

    engine.api.pull(reference, auth_config=private_registry.auth_config)
    engine.api.remove_image(reference)


def test_images_have_the_requested_configuration(engine: Engine, images: Images) -> None:
    reference = "node.test/as-www:1"
    images.load(reference, {"User": "www", "Env": ["PATH=/bin", "COLOUR=blue"]})

    assert output(engine, reference, ["sh", "-c", "id -un; echo $COLOUR"]) == "www\nblue\n"
    engine.api.remove_image(reference)


def test_a_pod_network_reaches_the_node_and_the_outside(engine: Engine, images: Images, node_dirs: NodeDirs) -> None:
    configuration = {
        "cniVersion": "0.4.0",
        "name": "smoke",
        "type": "bridge",
        "bridge": "smoke0",
        "isGateway": True,
        "ipMasq": True,
        "ipam": {
            "type": "host-local",
            "dataDir": str(node_dirs.cni_leases),
            "ranges": [[{"subnet": "10.99.0.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    before = node_dirs.snapshot(engine)
    with running(engine, images.busybox, ["sleep", "60"]) as container:
        pid = engine.api.inspect_container(container)["State"]["Pid"]
        result = cni("ADD", configuration, container=container, pid=pid, dirs=node_dirs)
        address = result["ips"][0]["address"].partition("/")[0]
        pinged = exit_code(engine.api, container, ["ping", "-c", "1", "-W", "5", "192.0.2.1"])
        from_node = subprocess.run(["ip", "route", "get", address], check=True, capture_output=True)
        cni("DEL", configuration, container=container, pid=pid, dirs=node_dirs)
        assert pinged == 0
    subprocess.run(["ip", "link", "delete", "smoke0"], check=True)

    assert b"smoke0" in from_node.stdout
    assert node_dirs.snapshot(engine) == before


def cni(verb: str, configuration: dict[str, object], *, container: str, pid: int, dirs: NodeDirs) -> Any:
    done = subprocess.run(
        [dirs.cni_bin / "bridge"],
        check=True,
        input=json.dumps(configuration).encode(),
        capture_output=True,
        env={
            **os.environ,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": f"/proc/{pid}/ns/net",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(dirs.cni_bin),
        },
    )
    return json.loads(done.stdout or b"{}")


def test_addresses_beyond_the_outside_host_refuse_at_once(node: Node) -> None:
    assert OUTSIDE.exists(), node
    with pytest.raises(OSError, match=r"unreachable|No route to host") as refusal:
        socket.create_connection(("203.0.113.1", 443), timeout=10)

    assert refusal.value.errno in {errno.ENETUNREACH, errno.EHOSTUNREACH}
