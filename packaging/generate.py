"""Generate the man pages and completions from command line and settings, and the page of the dashboard from its panels.

`python packaging/generate.py` writes the files; with `--check` it writes nothing, and exits with 1 and the names of the
files that are out of date.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import shtab

from shim import __version__
from shim.cli import parser
from shim.config import cri_dockerd_flags, show
from shim.config.fields import Field, fields
from shim.config.load import DEFAULT_FILE, drop_in_directory
from shim.config.model import Config

PACKAGING = Path(__file__).resolve().parent
MAN = PACKAGING / "man"
"""Pages by the name of their file; each command but the server has a page, `pydockershim-install.8` for one."""
DASHBOARD = PACKAGING / "monitoring/dashboard.json"
DASHBOARD_PAGE = PACKAGING.parent / "docs/dashboard.md"
RECORDED = PACKAGING.parent / "integration/dashboard/recorded.json"
COMPLETIONS = MappingProxyType(
    {
        "bash": PACKAGING / "completions/pydockershim.bash",
        "zsh": PACKAGING / "completions/_pydockershim",
        "fish": PACKAGING / "completions/pydockershim.fish",
    }
)
"""The file of each shell, named as it wants it below its directory of completions."""

_FILES = MappingProxyType(
    {
        str(DEFAULT_FILE): "settings, in TOML; `pydockershim config --reference` shows all of them",
        f"{drop_in_directory()}/*.toml": "settings that are read after it, by the order of names",
        "/run/cri-dockerd.sock": "the socket of the CRI, unless `container_runtime_endpoint` names another one",
        "/var/lib/pydockershim": "state of the pods (`root_directory`)",
        "/etc/cni/net.d": "CNI configurations (`cni_conf_dir`)",
    }
)
_SIGNALS = MappingProxyType(
    {
        "SIGTERM, SIGINT": "Answer reads alone, complete pod sandboxes under way within `shutdown_grace`, and end. A "
        "second signal kills.",
        "SIGUSR1": "Write the stacks of all threads, RPCs under way, held locks and queues to the log.",
        "SIGHUP": "Read the settings again: `log_level` is in force at once, others are named in the log.",
    }
)
_STATUS = MappingProxyType(
    {
        "0": "Success.",
        "1": "The server could not start or did not end properly; `doctor` found that pods cannot run.",
        "2": "Wrong flags, settings or content of a file. Starting again does not help.",
    }
)


def main() -> int:
    """Run the command line and return the exit status."""
    arguments = argparse.ArgumentParser(description="Generate what is installed beside the server.")
    arguments.add_argument("--check", action="store_true", help="compare with what is checked in, write nothing")
    check = arguments.parse_args().check
    outdated = {path: text for path, text in generate().items() if not path.exists() or path.read_text() != text}
    for path, text in outdated.items():
        if check:
            print(f"{path.relative_to(PACKAGING.parent)} is out of date: run python packaging/generate.py")
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(PACKAGING.parent)}")
    return 1 if check and outdated else 0


def generate() -> dict[Path, str]:
    """Return the content of each file by its path."""
    completions = {path: _completion(shell) for shell, path in COMPLETIONS.items()}
    return {**man_pages(), DASHBOARD_PAGE: dashboard_page(), **completions}


def _completion(shell: str) -> str:
    completed = parser()
    for action in _actions(completed):
        if action.dest == "config":
            action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab's own attribute
        elif action.dest in fields():
            _complete_value(action)
    text: str = shtab.complete(completed, shell=shell)
    return text if text.endswith("\n") else text + "\n"


def _complete_value(action: argparse.Action) -> None:
    kind = get_type_hints(Config)[action.dest]
    if get_origin(kind) is Literal:
        action.choices = get_args(kind)
    elif kind is bool:
        action.choices = ("true", "false")
    elif kind in {Path, tuple[Path, ...]} or action.dest.endswith("_dir"):
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined] # as above
    elif action.dest.endswith("_file"):
        action.complete = shtab.FILE  # type: ignore[attr-defined] # as above


def _actions(of: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in of._actions:  # argparse has no public way to list them
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


# --- the man pages, in the macros of man(7) ----------------------------------------------------------------


_PAGES = MappingProxyType(
    {
        "doctor": (
            "doctor checks this node as the server would find it, and changes nothing. Each finding is a line: its "
            "level, its subject, and what was found; below a warning or a failure is what to do. It ends within 15 "
            "seconds, also where Docker, systemd or a volume hangs. Exit status 1: pods cannot run."
        ),
        "config": (
            "config shows the effective settings, and where each comes from: a flag, a variable, a file or the default."
        ),
        "install": (
            "install writes the units, `/etc/crictl.yaml` and `/etc/pydockershim/config.toml`, and starts the server. "
            "It leaves files of others alone, and records what it did in `/etc/pydockershim/installed.json`."
        ),
        "uninstall": (
            "uninstall undoes what install did, except in files that were changed since. It refuses while there are "
            "pods."
        ),
    }
)
"""The description of each command with a page of its own."""


def man_pages() -> dict[Path, str]:
    """Return the pages by their paths."""
    described = parser()
    [commands] = [action for action in described._actions if isinstance(action, argparse._SubParsersAction)]
    pages = {MAN / f"pydockershim-{name}.8": _command_page(name, commands.choices[name]) for name in _PAGES}
    return {MAN / "pydockershim.8": man_page(described), **pages}


def _command_page(name: str, command: argparse.ArgumentParser) -> str:
    shown = [action for action in command._actions if action.help != argparse.SUPPRESS]
    own = [action for action in shown if action.dest not in fields() and not _is_of_cri_dockerd(action)]
    settings = [field for field in fields().values() if field.flag in command.format_help()]
    given = "Flags of settings are those of pydockershim(8)." if settings else ""
    sections = {
        "NAME": [rf"pydockershim\-{name} \- {roff(_choices(parser())[name])}"],
        "SYNOPSIS": [roff(f"`pydockershim {name}` [options]")],
        "DESCRIPTION": [roff(_PAGES[name])],
        "OPTIONS": [*(line for action in own for line in _option(action)), *([".PP", roff(given)] if given else [])],
        "SEE ALSO": [roff("pydockershim(8)")],
    }
    return _page(f"PYDOCKERSHIM-{name.upper()}", sections)


def _is_of_cri_dockerd(action: argparse.Action) -> bool:
    flags = {*cri_dockerd_flags.ALIASES, *(entry.flag for entry in cri_dockerd_flags.IGNORED)}
    return action.dest in flags or bool(flags.intersection(action.option_strings))


def _option(action: argparse.Action) -> list[str]:
    value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 and not action.choices else ""
    value = f" {'|'.join(action.choices)}" if action.choices else value
    text = action.help or ""
    return _entry(f"{', '.join(action.option_strings)}{value}", f"{text[:1].upper()}{text[1:]}.")


def _page(title: str, sections: dict[str, list[str]]) -> str:
    head = f'.TH {title} 8 "" "pydockershim {__version__}" "System Administration"'
    return "\n".join([head, *(line for name, lines in sections.items() for line in (f".SH {name}", *lines))]) + "\n"


def man_page(described: argparse.ArgumentParser) -> str:
    """Return the page of the server and of all settings."""
    sections = {
        "NAME": [r"pydockershim \- a Kubernetes CRI server in front of the Docker Engine"],
        "SYNOPSIS": list(_synopsis(described)),
        "DESCRIPTION": [
            roff(
                "pydockershim serves the Kubernetes Container Runtime Interface (CRI v1) on a unix socket, runs "
                "containers with the Docker Engine of this machine, and their network with CNI plugins. A kubelet "
                "finds it by `--container-runtime-endpoint`, crictl by `/etc/crictl.yaml`. It runs as root."
            )
        ],
        "COMMANDS": list(_commands(described)),
        "OPTIONS": [
            *_entry(
                "--config FILE",
                f"TOML file with settings. Default: `{DEFAULT_FILE}` and the files of `{drop_in_directory()}`.",
            ),
            *_entry("--version, --buildinfo", "Show versions, and end."),
            ".PP",
            roff(
                "Each setting is a flag, a variable of the environment and, by its name in lower case, a key of the "
                "file. A flag goes before a variable, and that before the file."
            ),
            *(line for field in fields().values() for line in _setting(field)),
        ],
        "FLAGS OF CRI-DOCKERD": [
            roff("Flags alone, without a command, mean `serve`. These are taken in addition:"),
            *(
                line
                for flag, name in cri_dockerd_flags.ALIASES.items()
                for line in _entry(f"{flag} VALUE", f"The same as `{fields()[name].flag}`.")
            ),
            *(
                line
                for entry in cri_dockerd_flags.IGNORED
                for line in _entry(f"{entry.flag} VALUE", f"Ignored: {entry.why}.")
            ),
        ],
        "SIGNALS": _entries(_SIGNALS),
        "EXIT STATUS": _entries(_STATUS),
        "FILES": _entries(_FILES),
        "SEE ALSO": [
            roff(f"{', '.join(f'pydockershim-{name}(8)' for name in _PAGES)}, crictl(1), dockerd(8), systemctl(1)")
        ],
    }
    return _page("PYDOCKERSHIM", sections)


def roff(text: str) -> str:
    """Return text for roff: what stands in backquotes is bold, and nothing else has a meaning of its own."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    parts = escaped.split("`")
    joined = "".join(f"\\fB{part}\\fR" if number % 2 else part for number, part in enumerate(parts))
    return f"\\&{joined}" if joined.startswith((".", "'")) else joined


def _synopsis(of: argparse.ArgumentParser) -> Iterator[str]:
    for name in _choices(of):
        yield ".br" if name != "serve" else ".nh"
        yield roff(f"`pydockershim {name}` [options]")


def _commands(of: argparse.ArgumentParser) -> Iterator[str]:
    for name, text in _choices(of).items():
        yield from _entry(name, f"{text[0].upper()}{text[1:]}.")


def _choices(of: argparse.ArgumentParser) -> dict[str, str]:
    """Return the commands with what they do."""
    [commands] = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
    found: list[Any] = commands._choices_actions
    return {choice.dest: choice.help for choice in found}


def _setting(field: Field) -> Iterator[str]:
    zero = f" 0: {field.zero}." if field.zero else ""
    default = show.text(field.default)
    yield from _entry(
        f"{field.flag} VALUE, {field.variable}",
        f"{field.doc} Give {field.accepted}.{zero} Default: {f'`{default}`' if default else 'empty'}.",
    )


def _entries(rows: MappingProxyType[str, str]) -> list[str]:
    return [line for tag, text in rows.items() for line in _entry(tag, text)]


def _entry(tag: str, text: str) -> list[str]:
    return [".TP", roff(f"`{tag}`"), roff(text)]


# --- the page of the dashboard ------------------------------------------------------------------------------

_DASHBOARD_INTRODUCTION = """\
# The dashboard, panel by panel

For users of [dashboard.json](../packaging/monitoring/dashboard.json): each panel with its queries. `python
packaging/generate.py` makes this page. `$instance` is the chosen node, `$__rate_interval` the distance of Grafana's
points: with `.*` and `5m` instead, a query runs in Prometheus. The comment after a query names its line, with labels of
the series in `{{}}`. The [pictures](#the-pictures) show answers of a Prometheus to the queries.
"""

_OF_THE_PICTURES = """## The pictures

Prometheus %(prometheus)s scraped a server on Docker Engine %(docker)s for %(minutes)s minutes with
[prometheus.yml](../packaging/monitoring/prometheus.yml), while pods came and went. `$__rate_interval` is `1m`.
Numbered lines mark events:

%(events)s

`make dashboard-pictures` draws them again from the kept recording; `make dashboard-recording` (root, some ten minutes)
makes another. The machine was busy.
"""


def dashboard_page() -> str:
    """Return the page."""
    blocks = [_DASHBOARD_INTRODUCTION]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] == "row":
            name = "-".join(re.findall(r"[a-z]+", panel["title"].lower().replace("'", "")))
            blocks.append(f"## {panel['title']}\n")
            blocks.append(f"![{panel['title']}](pictures/dashboard-{name}.svg)\n")
        else:
            blocks.append(f"**{panel['title']}.** {panel['description']}\n")
            targets = ((target["expr"], target["legendFormat"]) for target in panel["targets"])
            blocks.append("```\n" + "".join(f"{query}    # {name}\n" for query, name in targets) + "```\n")
    blocks.append(_of_the_pictures())
    return "\n".join(blocks)


def _of_the_pictures() -> str:
    recorded = json.loads(RECORDED.read_text())
    lines = (
        f"{number}. {event['seconds'] // 60}:{event['seconds'] % 60:02} {event['what']}"
        for number, event in enumerate(recorded["events"], 1)
    )
    return _OF_THE_PICTURES % {
        "docker": recorded["docker"],
        "prometheus": recorded["prometheus"],
        "minutes": recorded["step"] * (recorded["points"] - 1) // 60,
        "events": "\n".join(lines),
    }


if __name__ == "__main__":
    sys.exit(main())
