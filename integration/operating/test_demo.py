"""`make demo` on a machine without Docker: a pod runs, and then the machine is unchanged."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import pytest

from integration.node.commands import run
from integration.node.host import BIN_DIRS, CONF_DIR, SOCKET, control_groups_of_docker, remove_unused_control_group
from integration.node.isolation import HOME, Node, new_home
from integration.node.mounts import mount_paths, unmount_all
from integration.node.netns import Netns, new_netns
from integration.node.processes import command

DEMO = ("-m", "integration.node", "host", sys.executable, "-m", "integration.demo")
FILES = (
    "/etc",
    "/opt",
    "/run",
    "/usr/lib/cni",
    "/var/lib/cni",
    "/var/lib/pydockershim",
    "/var/lib/pydockershim-demo",
    "/var/log/pods",
)
OF_TESTS = (HOME, Path("/run/changes"))
"""Directories of the isolated tests."""
SETTINGS = r"^net\.(bridge\.|ipv4\.ip_forward$|ipv[46]\.conf\.(all|default)\.)"
OF_OTHERS = ("-N OTHERS", "-A OTHERS -d 203.0.113.7 -j DROP", "-A FORWARD -j OTHERS")
_SECONDS = 300


@contextmanager
def mounted(*words: str | Path, place: Path) -> Iterator[None]:
    """Mount a file system on a directory for the block; create the directory if it is missing."""
    missing = not place.exists()
    place.mkdir(parents=True, exist_ok=True)
    run(["mount", *words, place], timeout=_SECONDS)
    try:
        yield
    finally:
        unmount_all(place)
        if missing:
            place.rmdir()


@pytest.fixture
def machine(node: Node) -> Iterator[Netns]:
    """A machine with Docker's programs and CNI plugins that forwards nothing, and has other programs' rules."""
    home = new_home("demo")
    home.mkdir()
    path = os.pathsep.join([*map(str, node.stable.path), os.environ["PATH"]])
    plugins = node.tools.root / "usr/lib/cni"
    with (
        mounted("-t", "tmpfs", "tmpfs", place=Path("/var/lib/docker")),
        mounted("--bind", plugins, place=BIN_DIRS[1]),
        new_netns(home / "netns", environ={"PATH": path}) as made,
    ):
        made.run("ip link set lo up")
        made.set("ipv4/ip_forward", 0)
        for rule in OF_OTHERS:
            made.run(f"iptables {rule}")
        yield made


@dataclass(frozen=True, slots=True)
class Machine:
    """The parts of a machine that a demo could change."""

    links: frozenset[str]
    rules: frozenset[str]
    settings: frozenset[str]
    files: frozenset[str]
    mounts: frozenset[str]
    programs: frozenset[bytes]


def seen(netns: Netns) -> Machine:
    saved = [line for program in ("iptables", "ip6tables") for line in netns.run(f"{program}-save").splitlines()]
    rules = (line.partition(" [")[0] for line in saved if line.startswith((":", "-A")))
    settings = netns.call(lambda: run(["sysctl", "--all", "--pattern", SETTINGS], timeout=_SECONDS))
    places = [path for path in FILES if Path(path).exists()]
    left_out = [word for path in OF_TESTS for word in ("-path", path, "-prune", "-o")]
    files = run(["find", *places, *left_out, "-print"], timeout=_SECONDS)
    running = (command(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit())
    return Machine(
        links=frozenset(netns.run("ip -brief link").splitlines()),
        # The first query of a table creates its chains.
        rules=frozenset(rule for rule in rules if not rule.endswith(" ACCEPT") or rule.startswith("-A")),
        settings=frozenset(settings.splitlines()),
        files=frozenset(files.splitlines()),
        mounts=mount_paths(),
        programs=frozenset(words for words in running if str(SOCKET.parent / "docker").encode() in words),
    )


def changes(before: Machine, after: Machine) -> dict[str, list[object]]:
    found = {field.name: getattr(before, field.name) ^ getattr(after, field.name) for field in fields(Machine)}
    return {name: sorted(values) for name, values in found.items() if values}


CLUSTER = {"cniVersion": "1.0.0", "name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}
"""The network of another kubelet, whose plugin cannot be used here."""


@pytest.fixture(params=[None, CLUSTER], ids=["fresh", "another kubelet"])
def network(request: pytest.FixtureRequest) -> Iterator[None]:
    """The machine has the network of a cluster, or none."""
    if request.param is None:
        yield
        return
    CONF_DIR.mkdir(parents=True, exist_ok=True)
    file = CONF_DIR / "10-flannel.conflist"
    file.write_text(json.dumps(request.param))
    try:
        yield
    finally:
        file.unlink()


@pytest.mark.usefixtures("network")
def test_the_demo_runs_a_pod_and_leaves_the_machine_unchanged(machine: Netns) -> None:
    before = seen(machine)
    missing = [path for path in control_groups_of_docker() if not path.exists()]

    done = subprocess.run(
        [*machine.prefix, sys.executable, *DEMO],
        env={**os.environ, **machine.environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from outside of the node" in done.stdout
    assert changes(before, seen(machine)) == {}
    # Another Docker may have created a cgroup meanwhile, with containers in it.
    assert [path for path in missing if path.exists() and not any(child.is_dir() for child in path.iterdir())] == []


@pytest.mark.usefixtures("node")
def test_a_hierarchy_that_is_not_mounted_has_no_cgroup_to_remove() -> None:
    place = new_home("hierarchies")
    with mounted("-t", "tmpfs", "-o", "ro", "tmpfs", place=place):
        remove_unused_control_group(place / "docker")


def test_a_cgroup_in_use_by_another_docker_stays(node: Node) -> None:
    """Simulates Docker's cgroup with a container's cgroup inside."""
    own = control_groups_of_docker()[0].with_name(node.cgroup_parent.strip("/")) / "demo"
    group = own / "docker"
    container = group / "container"
    container.mkdir(parents=True)
    try:
        remove_unused_control_group(group)
        assert container.is_dir()
        container.rmdir()
        remove_unused_control_group(group)
        assert not group.exists()
        remove_unused_control_group(group)
    finally:
        for path in (container, group, own):
            if path.exists():
                path.rmdir()
