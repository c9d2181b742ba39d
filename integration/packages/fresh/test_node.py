"""The packages on fresh machines of Debian 12 and 13 and Ubuntu 24.04, as docs/install.md says."""

import json
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from integration.conftest import make_engine
from integration.cri import Cri, container_config, pod_config
from integration.node.images import BUSYBOX, Image, busybox_image
from integration.node.isolation import Node
from integration.packages.fresh.kinds import KINDS, NEWER, build_names, dnf_install
from integration.packages.fresh.machine import Machine, booted
from integration.packages.fresh.mistakes import MISTAKES
from integration.packages.fresh.roots import RECOMMENDED, SUITES
from integration.pods.user_namespaces import FIRST, features, own_users
from integration.waiting import wait_until
from release.source import CHECKOUT
from shim.api.v1 import api_pb2 as pb

UNITS = ("pydockershim.socket", "pydockershim.service")
PLUGIN = "/usr/lib/cni/bridge"


@pytest.fixture(scope="module", params=SUITES)
def machine(request: pytest.FixtureRequest, node: Node) -> Iterator[Machine]:
    engine = make_engine(node, "28", variant=f"fresh-{request.param}")
    engine.start()
    try:
        with booted(engine, request.param) as made:
            yield made
    finally:
        engine.close()


@pytest.fixture(scope="module")
def with_docker(machine: Machine, node: Node, pause_image: Image) -> Machine:
    machine.run("apt-get", "install", "--yes", *RECOMMENDED)
    wait_until(lambda: machine.is_active("docker"))
    machine.load(pause_image, busybox_image(node.busybox))
    return machine


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """`built(kind)` builds a package and a newer version, once."""

    @cache
    def build(kind: str) -> tuple[Path, Path]:
        return KINDS[kind].build(tmp_path_factory.mktemp(kind))

    return build


def assert_run_on(machine: Machine, container: str, mapped: str) -> None:
    """Check that a server of another version shows both containers unchanged, and can reach them."""
    wait_until(lambda: machine.is_active(*UNITS))
    with machine.cri() as cri:
        for each in (container, mapped):
            assert cri.container_status(each).state == pb.CONTAINER_RUNNING
        assert_runs_commands_itself(cri, container)
        assert_mapped(cri, mapped)
    assert machine.tried("pydockershim", "doctor")[0] == 0


def assert_mapped(cri: Cri, container: str) -> None:
    """Check that a container runs in its user namespace."""
    assert cri.exec(container, "cat", "/proc/self/uid_map").stdout.split() == [b"0", str(FIRST).encode(), b"65536"]


def assert_runs_commands_itself(cri: Cri, container: str) -> None:
    """Check that the server executes commands through pydockershim-exec.service, because its own unit is hardened."""
    assert cri.exec(container, "hostname").exit_code == 0
    answer = cri.runtime.Status(pb.StatusRequest(verbose=True))
    assert json.loads(answer.info["config"])["ownExec"] == {"run": 1, "leftToDocker": {}}


@pytest.mark.timeout(1800)
def test_one_command_installs_docker_and_starts_the_server(
    machine: Machine, built: Callable[[str], tuple[Path, Path]]
) -> None:
    assert machine.tried("test", "-e", PLUGIN)[0] != 0
    assert machine.tried("systemctl", "cat", "docker")[0] != 0

    machine.run("apt-get", "install", "--yes", machine.put(built("deb")[0]))

    assert machine.is_active("docker", *UNITS)
    machine.run("test", "-x", PLUGIN)
    machine.run("pydockershim", "install", "--docker", "--cni", "10-bridge")
    wait_until(lambda: machine.tried("pydockershim", "doctor")[0] == 0)
    machine.run("apt-get", "purge", "--yes", "pydockershim")


OFTEN = "[Unit]\nStartLimitBurst=3\nStartLimitIntervalSec=1h\n"


@pytest.mark.timeout(1800)
def test_docker_runs_however_often_its_settings_change(
    with_docker: Machine, built: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    machine = with_docker
    machine.run("apt-get", "install", "--yes", machine.put(built("deb")[0]))
    (tmp_path / "often.conf").write_text(OFTEN)
    place = "/etc/systemd/system/docker.service.d"
    machine.run("install", "-D", "-m", "644", machine.put(tmp_path / "often.conf"), f"{place}/often.conf")
    machine.run("systemctl", "daemon-reload")

    for _ in range(5):
        machine.run("rm", "--force", "/etc/docker/daemon.json")
        assert "run   systemctl restart docker.service" in machine.run("pydockershim", "install", "--docker")
        assert machine.is_active("docker")

    machine.run("apt-get", "purge", "--yes", "pydockershim")
    machine.run("rm", "--recursive", place)
    machine.run("systemctl", "daemon-reload")


CONFIG = "/etc/pydockershim/config.toml"
STATE = "/var/lib/pydockershim"
DROP_IN = "/etc/pydockershim/conf.d/node.toml"
EDITED = f"""\
sed -i '1s/.*/# Edited./' {CONFIG}
echo 'log_level = "debug"' >>{CONFIG}
echo 'shutdown_grace = 77' >{DROP_IN}
"""
"""Changes a comment of the file, and settings in two files."""


def assert_settings_of(machine: Machine) -> None:
    """Check that the settings of EDITED are in effect."""
    shown = json.loads(machine.run("pydockershim", "config", "--format", "json"))
    assert shown["log_level"] == {"value": "debug", "origin": f"file {CONFIG}"}
    assert shown["shutdown_grace"] == {"value": 77.0, "origin": f"file {DROP_IN}"}


def started(cri: Cri, name: str, namespaces: pb.NamespaceOption) -> tuple[str, str]:
    """Start a container in a new pod; return the ids of both."""
    of_pod = pb.LinuxSandboxSecurityContext(namespace_options=namespaces)
    of_container = pb.LinuxContainerSecurityContext(namespace_options=namespaces)
    linux = pb.LinuxPodSandboxConfig(security_context=of_pod)
    config = pod_config(name, log_directory=f"/var/log/pods/{name}", linux=linux)
    pod = cri.run(config)
    own = pb.LinuxContainerConfig(security_context=of_container)
    process = container_config("main", image=BUSYBOX, command=["sleep", "86400"], linux=own)
    container = cri.create(pod, process, pod=config)
    cri.start(container)
    return pod, container


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", list(KINDS))
def test_pods_survive_upgrade_and_downgrade_and_a_removal_leaves_nothing(
    name: str, with_docker: Machine, built: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    machine, kind = with_docker, KINDS[name]
    package, newer = built(name)
    kind.prepare(machine, tmp_path)
    files, mounts = machine.files(), machine.mounts()
    # The machine's root is an overlay, whose files cannot be mapped into user namespaces.
    machine.run("sh", "-ec", f"mkdir {STATE}; mount -t tmpfs -o mode=700 tmpfs {STATE}")

    machine.run(*kind.install, machine.put(package))
    machine.run("pydockershim", "install", "--docker", "--cni", "10-bridge")

    assert machine.is_active(*UNITS)
    wait_until(lambda: machine.tried("pydockershim", "doctor")[0] == 0)
    machine.run("sh", "-ec", EDITED)
    edited = machine.run("cat", CONFIG, DROP_IN)
    with machine.cri() as cri:
        wait_until(lambda: features(cri).user_namespaces)
        pod, container = started(cri, "fresh", pb.NamespaceOption(pid=pb.CONTAINER))
        assert_runs_commands_itself(cri, container)
        assert cri.sandbox_status(pod).network.ip
        other, mapped = started(cri, "mapped", own_users())
        assert_mapped(cri, mapped)

    machine.run(*kind.install, machine.put(newer))

    assert NEWER in machine.run(*kind.version)
    assert_run_on(machine, container, mapped)
    assert machine.run("cat", CONFIG, DROP_IN) == edited
    assert_settings_of(machine)

    machine.run(*kind.downgrade, machine.put(package))

    assert NEWER not in machine.run(*kind.version)
    assert_run_on(machine, container, mapped)
    assert machine.run("cat", CONFIG, DROP_IN) == edited
    assert_settings_of(machine)
    with machine.cri() as cri:
        refused, words = machine.tried("pydockershim", "uninstall")
        assert refused == 1
        assert "crictl rmp --all --force" in words
        for each in (pod, other):
            cri.stop(each)
            cri.remove(each)

    machine.run("rm", DROP_IN)
    machine.run("umount", "--lazy", STATE)
    machine.run(*kind.remove)

    assert machine.files() ^ files == kind.left
    assert machine.mounts() - mounts == set()
    assert machine.tried("test", "-e", "/run/cri-dockerd.sock")[0] != 0
    assert "pydockershim" not in machine.run("systemctl", "list-units", "--all", "--plain")
    assert "pydockershim" not in machine.run("systemctl", "list-unit-files")


@pytest.mark.timeout(1800)
def test_clients_see_a_mistake_in_the_settings_and_cause_no_restarts(
    with_docker: Machine, built: Callable[[str], tuple[Path, Path]]
) -> None:
    machine = with_docker
    machine.run("apt-get", "install", "--yes", machine.put(built("deb")[0]))
    wait_until(lambda: machine.is_active(*UNITS))

    machine.run("sh", "-ec", f"echo 'log_levle = 1' >{DROP_IN}; systemctl restart pydockershim.service")
    wrong = f"the settings of the server are wrong: file {DROP_IN}, line 1: there is no setting 'log_levle'"
    started = time.monotonic()
    assert machine.refusal().startswith(wrong)
    assert time.monotonic() - started < 5
    before = starts(machine)
    while time.monotonic() - started < 20:  # clients that retried once started it 46 times in this period
        assert machine.refusal().startswith(wrong)
    assert starts(machine) == before
    code, words = machine.tried("pydockershim", "doctor")
    assert code == 1
    assert words.splitlines()[0].startswith("FAIL  settings")
    assert any(line.startswith("ok    docker ") for line in words.splitlines())

    machine.run("sh", "-ec", f"echo 'log_level = \"debug\"' >{DROP_IN}")

    wait_until(lambda: machine.tried("pydockershim", "doctor")[1].count("FAIL  se") == 0)
    assert starts(machine) == before
    machine.run("rm", DROP_IN)
    machine.run("apt-get", "purge", "--yes", "pydockershim")


def starts(machine: Machine) -> int:
    lines = machine.run("journalctl", "--unit=pydockershim.service", "--output=cat").splitlines()
    return sum(line.startswith("Starting pydockershim.service") for line in lines)


def findings(machine: Machine) -> list[dict[str, str]]:
    """Return what doctor has to say, apart from good news."""
    shown = json.loads(machine.tried("pydockershim", "doctor", "--format", "json")[1])["findings"]
    return [finding for finding in shown if finding["level"] != "ok"]


def shows(
    unusual: Callable[[], list[dict[str, str]]], right: Callable[[list[dict[str, str]]], bool], name: str
) -> None:
    """Wait until the findings are right; on a busy machine a server takes seconds to start."""
    until = time.monotonic() + 30
    while not right(found := unusual()):
        assert time.monotonic() < until, (name, found)


@pytest.mark.timeout(1800)
def test_doctor_names_each_mistake_first_with_its_remedy(
    with_docker: Machine, built: Callable[[str], tuple[Path, Path]]
) -> None:
    machine = with_docker
    machine.run("apt-get", "install", "--yes", machine.put(built("deb")[0]))
    machine.run("pydockershim", "install", "--docker", "--cni", "10-bridge")
    wait_until(lambda: machine.tried("pydockershim", "doctor")[0] == 0)
    usual = {finding["subject"] for finding in findings(machine)}  # such as the kernel of this machine

    def unusual() -> list[dict[str, str]]:
        return [finding for finding in findings(machine) if finding["subject"] not in usual]

    for mistake in MISTAKES:
        machine.run("sh", "-ec", mistake.made)
        shows(unusual, mistake.is_first, mistake.name)

        machine.run("sh", "-ec", mistake.mended)
        shows(unusual, lambda found: found == [], f"{mistake.name}, mended")
        machine.run("sh", "-ec", mistake.after)
    machine.run("apt-get", "purge", "--yes", "pydockershim")


def block(page: str, heading: str, *, number: int) -> str:
    """Return a block of commands below a heading of a page."""
    text = (CHECKOUT / "docs" / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: list[str] = re.findall(r"^```\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return found[number]


@pytest.mark.timeout(1800)
def test_the_unit_names_of_cri_dockerd_can_be_added_and_removed(
    with_docker: Machine, built: Callable[[str], tuple[Path, Path]]
) -> None:
    machine = with_docker
    machine.run("apt-get", "install", "--yes", machine.put(built("deb")[0]))
    files = machine.files()

    machine.run("sh", "-ec", block("drop-in.md", "The names", number=0))

    for kind in ("service", "socket"):
        machine.run("systemctl", "restart", f"cri-docker.{kind}", f"cri-dockerd.{kind}")
        assert machine.run("systemctl", "show", "-P", "Id", f"cri-docker.{kind}").strip() == f"pydockershim.{kind}"
    assert machine.run("cri-dockerd", "version") == machine.run("pydockershim", "version")
    wait_until(lambda: machine.is_active(*UNITS))

    machine.run("sh", "-ec", block("drop-in.md", "The names", number=1))

    assert [path for path in machine.files() - files if "cri-docker" in path] == []
    assert machine.is_active(*UNITS)
    assert machine.tried("systemctl", "is-active", "cri-docker.service")[0] != 0
    with machine.cri() as cri:
        assert cri.sandboxes() == []
    machine.run("apt-get", "purge", "--yes", "pydockershim")


UNITS_OF_CRI_DOCKERD = {
    "cri-docker.socket": "[Socket]\nListenStream=%t/cri-dockerd.sock\nSocketMode=0660\n",
    "cri-docker.service": "[Unit]\nRequires=cri-docker.socket\n[Service]\nType=notify\nExecStart=/bin/false\n",
}


@pytest.mark.timeout(1800)
def test_the_program_replaces_cri_dockerd_in_minikube(
    with_docker: Machine, built: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    machine = with_docker
    line = block("drop-in.md", "minikube", number=0)
    files = {**UNITS_OF_CRI_DOCKERD, "cri-docker.service.d/10-cni.conf": f"[Service]\nExecStart=\n{line}"}
    for name, text in files.items():
        (tmp_path / "file").write_text(text)
        machine.run("install", "-D", "-m", "644", machine.put(tmp_path / "file"), f"/etc/systemd/system/{name}")
    machine.run("install", "-m", "755", "/bin/false", "/usr/bin/cri-dockerd")
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", "cri-docker.socket")
    package = machine.put(built("deb")[0])
    machine.run("cp", package, "/tmp/")  # as the page says
    machine.run("apt-get", "install", "--yes", package)
    assert not machine.is_active("pydockershim.service")

    machine.run("sh", "-ec", block("drop-in.md", "minikube", number=1))

    with machine.cri() as cri:
        assert cri.runtime.Version(pb.VersionRequest()).runtime_name == "docker"
    assert machine.is_active("cri-docker.service")
    assert not machine.is_active("pydockershim.service")
    machine.run("systemctl", "stop", "cri-docker.socket", "cri-docker.service")
    machine.run("rm", "-r", "/etc/systemd/system/cri-docker.service.d", "/usr/bin/cri-dockerd")
    machine.run("rm", *(f"/etc/systemd/system/{name}" for name in UNITS_OF_CRI_DOCKERD))
    machine.run("rm", "/usr/bin/cri-dockerd.minikube")
    machine.run("systemctl", "daemon-reload")
    machine.run("apt-get", "purge", "--yes", "pydockershim")


@pytest.mark.parametrize(
    ("pythons", "taken"),
    [
        ({"python3": "3.13.5"}, True),
        ({"python3": "3.9.18", "python3.12": "3.12.1"}, True),
        ({"python3": "3.9.18"}, False),
        ({"python3": "3.15.0"}, False),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else None,
)
def test_dnf_accepts_the_rpm_if_a_supported_python_is_available(
    machine: Machine,
    pythons: dict[str, str],
    taken: bool,
    built: Callable[[str], tuple[Path, Path]],
    tmp_path: Path,
) -> None:
    package, _ = built("rpm")
    names = build_names(tmp_path / "names", {**pythons, "glibc": "2.28"})

    root = f"--installroot=/srv/{tmp_path.name}"
    code, words = dnf_install(machine, [package, *names], root, "--setopt=tsflags=test")

    assert (code == 0) == taken, words
    if not taken:
        assert "nothing provides" in words
        assert "python3 >= 3.11" in words
