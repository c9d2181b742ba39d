"""`proto/generate.py` as it is run, on this repository and on copies of it with something wrong."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 12), reason="the generator has no wheels for CPython 3.12: proto/requirements.txt"
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Copy what the generator reads and writes."""
    for part in ("proto", "shim/api"):
        shutil.copytree(REPOSITORY / part, tmp_path / part)
    return tmp_path


def generate(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "proto/generate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_checked_in_code_is_what_the_definition_generates() -> None:
    finished = generate(REPOSITORY, "--check")
    assert (finished.returncode, finished.stderr) == (0, "")


def test_check_names_the_files_that_a_changed_number_changes(tree: Path) -> None:
    definition = tree / "proto/shim/api/v1/api.proto"
    text = definition.read_text()
    definition.write_text(text.replace("int32 exit_code = 7;", "int32 exit_code = 70;"))
    finished = generate(tree, "--check")
    assert finished.returncode == 1
    assert "shim/api/v1/api_pb2.py is not what shim/api/v1/api.proto generates" in finished.stderr
    assert "api_pb2_grpc" not in finished.stderr


def test_check_names_missing_and_left_over_files(tree: Path) -> None:
    package = tree / "shim/api/v1"
    (package / "api_pb2.pyi").rename(package / "old_pb2.pyi")
    finished = generate(tree, "--check")
    assert finished.returncode == 1
    named = [line.split()[0] for line in finished.stderr.splitlines() if line.startswith("shim/")]
    assert named == ["shim/api/v1/api_pb2.pyi", "shim/api/v1/old_pb2.pyi"]


def test_generate_repairs_the_package(tree: Path) -> None:
    package = tree / "shim/api/v1"
    (package / "api_pb2.pyi").rename(package / "old_pb2.pyi")
    assert generate(tree).returncode == 0
    assert generate(tree, "--check").returncode == 0
    assert (package / "__init__.py").is_file()


def test_broken_definition_is_reported_by_line_and_changes_nothing(tree: Path) -> None:
    package = tree / "shim/api/v1"
    before = {path: path.read_bytes() for path in package.glob("*.py*")}
    definition = tree / "proto/shim/api/v1/api.proto"
    definition.write_text(definition.read_text() + "message {}\n")
    line = len(definition.read_text().splitlines())
    finished = generate(tree)
    assert finished.returncode == 1
    assert f"api.proto:{line}:" in finished.stderr
    assert {path: path.read_bytes() for path in package.glob("*.py*")} == before
