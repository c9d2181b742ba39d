"""The man page, completions and page of the dashboard are up to date, and programs that read them accept them."""

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from shim.config.cri_dockerd_flags import ALIASES, IGNORED
from shim.config.fields import fields

ROOT = Path(__file__).parents[2]
BASH = ROOT / "packaging/completions/pydockershim.bash"


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "packaging/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_files_are_up_to_date(generator: ModuleType) -> None:
    fresh: dict[Path, str] = generator.generate()

    assert [path.name for path, text in fresh.items() if path.read_text() != text] == []


def test_the_man_page_names_every_flag(generator: ModuleType) -> None:
    page = (generator.MAN / "pydockershim.8").read_text()

    flags = [*(field.flag for field in fields().values()), *ALIASES, *(entry.flag for entry in IGNORED)]
    assert [flag for flag in flags if generator.roff(flag) not in page] == []


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("doctor", {"--format"}),
        ("config", {"--format", "--reference"}),
        ("install", {"--docker", "--cni", "--as-cri-dockerd", "--no-start", "--dry-run", "--root"}),
        ("uninstall", {"--force", "--keep-configuration", "--root", "--dry-run"}),
    ],
)
def test_the_man_page_of_a_command_names_its_flags(generator: ModuleType, command: str, flags: set[str]) -> None:
    page = (generator.MAN / f"pydockershim-{command}.8").read_text()

    assert {flag for flag in flags if generator.roff(flag) not in page} == set()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [("a `b` c", r"a \fBb\fR c"), (".so x", r"\&.so x"), (r"C:\x-y", r"C:\ex\-y"), ("it's", r"it\(aqs")],
)
def test_text_is_escaped_for_roff(generator: ModuleType, text: str, escaped: str) -> None:
    assert generator.roff(text) == escaped


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff on this machine")
def test_groff_accepts_the_man_pages_without_warnings(generator: ModuleType) -> None:
    pages = [path for path in generator.generate() if path.suffix == ".8"]
    reported = subprocess.run(
        ["groff", "-man", "-ww", "-z", "-rLL=100n", *pages], capture_output=True, text=True, check=False
    )

    assert (reported.returncode, reported.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        (["d"], {"doctor"}),
        (["s"], {"serve"}),
        (["config", "--format", "t"], {"table", "toml"}),
        (["serve", "--log-le"], {"--log-level"}),
        (["serve", "--log-level", "w"], {"warning"}),
        (["serve", "--restrict-oom-score-adj", "a"], {"auto"}),
    ],
)
def test_bash_completes_commands_flags_and_values(words: list[str], completed: set[str]) -> None:
    line = ["pydockershim", *words]
    script = f'source {BASH}; COMP_WORDS=("$@"); COMP_CWORD={len(line) - 1}; '
    script += '_shtab_pydockershim; printf "%s\\n" "${COMPREPLY[@]}"'

    reported = subprocess.run(["bash", "-c", script, "bash", *line], capture_output=True, text=True, check=True)

    assert {word.strip() for word in reported.stdout.splitlines()} == completed
