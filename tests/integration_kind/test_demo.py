import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from integration.kind import demo
from integration.kind.demo import Steps, build_image, missing_programs
from integration.node.commands import NodeError


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory with docker and kubectl, without kind."""
    for name in ("docker", "kubectl"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 3\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def test_missing_programs_are_named(programs: Path) -> None:
    assert missing_programs(["docker", "kind", "kubectl"], str(programs)) == ["kind"]


def test_the_demo_says_what_is_missing_and_changes_nothing(programs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "integration.kind.demo", "run", f"--bin={programs}"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "kind: not on the PATH: kind (BIN=directory adds one)\n"


def test_make_says_what_is_missing_before_it_makes_anything(programs: Path, tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    shutil.copy(Path(__file__).parents[2] / "Makefile", checkout)
    (programs / "kubectl").unlink()
    (programs / "make").symlink_to(shutil.which("make") or "make is missing")
    for target, missing in (("kind-demo", "kind, kubectl"), ("kind-image", "docker")):
        done = subprocess.run(
            ["make", target, f"BIN={checkout}"],
            cwd=checkout,
            env={"PATH": str(programs), "SHELL": "/bin/sh"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        (programs / "docker").unlink(missing_ok=True)
        assert done.returncode == 2
        assert done.stderr.startswith(f"kind: not on the PATH: {missing} (BIN=directory adds one)\n")
    assert [path.name for path in checkout.iterdir()] == ["Makefile"]


def test_the_demo_uses_the_builder_that_docker_has(programs: Path) -> None:
    """With DOCKER_BUILDKIT=1, a docker without the plugin buildx refuses to build."""
    (programs / "docker").write_text(f"#!/bin/sh\n/usr/bin/env >{programs}/environ\nexit 3\n")
    done = subprocess.run(
        [sys.executable, "-m", "integration.kind.demo", "run", f"--bin={programs}"],
        env={"PATH": str(with_kind(programs))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (1, "kind: docker images --quiet pydockershim/node: exit status 3\n\n")
    assert "BUILDKIT" not in (programs / "environ").read_text()


def with_kind(programs: Path) -> Path:
    (programs / "kind").symlink_to("kubectl")
    return programs


WHEELS = ("grpcio-1.whl", "pydockershim-0.whl")


class Recorded(Steps):
    """Records commands instead of running them."""

    def __init__(self) -> None:
        super().__init__({})
        self.ran: list[tuple[str, ...]] = []

    def command(self, title: str, *words: str, cwd: Path | None = None) -> str:
        self.ran.append(words)
        return ""


@pytest.mark.parametrize("given", [False, True], ids=["with a network", "with wheels"])
def test_given_wheels_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool) -> None:
    monkeypatch.setattr(demo, "_WHEELS", tmp_path / "built")
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name in WHEELS:
        (wheels / name).touch()
    steps = Recorded()
    build_image(steps, node="n:1", wheels=wheels if given else None)

    alone = "--network none --build-arg PIP_NO_INDEX=1 " if given else ""
    assert " ".join(steps.ran[-1]) == (
        f"docker build --target kind-node --build-arg NODE=n:1 {alone}--tag pydockershim/node ."
    )
    assert sorted(path.name for path in (tmp_path / "built").glob("*")) == (list(WHEELS) if given else [])
    assert ("pip" in [word for words in steps.ran for word in words]) is not given  # pip fetches setuptools


def test_wheels_without_the_servers_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_WHEELS", tmp_path / "built")
    with pytest.raises(NodeError, match=f"^{tmp_path} has no wheel of pydockershim: pip wheel --wheel-dir"):
        build_image(Recorded(), node="n:1", wheels=tmp_path)
