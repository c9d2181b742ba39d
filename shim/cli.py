# ruff: noqa: T201 - commands print
"""The command line: `serve`, `doctor`, `config`, `version`. Flags follow from the settings in `shim.config.model`."""

import argparse
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as installed
from pathlib import Path

from shim import __version__
from shim.api.v1 import CRI_VERSION
from shim.config import legacy, show
from shim.config.fields import fields
from shim.config.load import DEFAULT_FILE, Loaded, load
from shim.domain.errors import InvalidArgument, ShimError

EXIT_FAILED = 1
EXIT_USAGE = 2
"""Wrong flags, settings or content of a file; starting again would not help, so the unit does not."""

_VERSION = ("--version", "--buildinfo")
_WITHOUT_COMMAND = {*_VERSION, "--help"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; an expected failure is one line on standard error."""
    given = parser().parse_args(_with_command(sys.argv[1:] if arguments is None else arguments))
    try:
        command: Callable[[argparse.Namespace], int] = given.command
        code = command(given)
        sys.stdout.flush()
    except InvalidArgument as error:
        return _print_error(error, EXIT_USAGE)
    except ShimError as error:
        return _print_error(error, EXIT_FAILED)
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); nothing more is to be written, not at the exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _with_command(words: Sequence[str]) -> Sequence[str]:
    """Put `serve` before flags alone: cri-dockerd has no commands, and its unit files name none."""
    flags_alone = words and words[0].startswith("--") and words[0] not in _WITHOUT_COMMAND
    return ["serve", *words] if flags_alone else words


def _print_error(error: ShimError, code: int) -> int:
    print(f"pydockershim: error: {error}", file=sys.stderr)
    return code


def _serve(given: argparse.Namespace) -> int:
    loaded, warnings = _settings(given)
    # Loading gRPC and structlog takes a third of a second, which the other commands need not.
    import structlog  # noqa: PLC0415

    from shim.base import log  # noqa: PLC0415
    from shim.daemon import serve  # noqa: PLC0415

    log.configure(level=loaded.config.log_level, style=loaded.config.log_format)
    for warning in warnings:
        structlog.get_logger(__name__).warning(warning)

    status = 0 if serve(loaded.config) else EXIT_FAILED
    # Python would wait for threads that hang, such as that of an RPC which did not end.
    sys.stdout.flush()
    os._exit(status)


def _doctor(given: argparse.Namespace) -> int:
    loaded, warnings = _settings(given)
    _warn(warnings)
    from shim.doctor.check import check  # noqa: PLC0415 - the other commands do without it
    from shim.doctor.findings import failed, shown  # noqa: PLC0415

    findings = []
    for finding in check(loaded.config, environ=os.environ):
        print(shown(finding), flush=True)  # before the next one is known, which may take seconds
        findings.append(finding)
    return EXIT_FAILED if failed(findings) else 0


def _config(given: argparse.Namespace) -> int:
    loaded, warnings = _settings(given)
    _warn(warnings)
    print(show.FORMATS[given.format](loaded))
    return 0


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"pydockershim: warning: {warning}", file=sys.stderr)


def _version(_given: argparse.Namespace) -> int:
    print(_versions())
    return 0


def _versions() -> str:
    return "\n".join(
        [
            f"pydockershim {__version__}",
            f"CRI {CRI_VERSION}",
            f"Python {platform.python_version()}",
            f"grpcio {installed('grpcio')}",
        ]
    )


def _settings(given: argparse.Namespace) -> tuple[Loaded, list[str]]:
    texts: Mapping[str, str | None] = vars(given)
    flags = {name: text for name in fields() if (text := texts.get(name)) is not None}
    old = {entry.flag: text for entry in legacy.LEGACY if (text := texts.get(entry.flag)) is not None}
    return load(flags=flags, environ=os.environ, file=given.config), legacy.warnings(old)


def parser() -> argparse.ArgumentParser:
    """Return the whole command line, of which the man page and the completions are made as well."""
    parser = argparse.ArgumentParser(
        prog="pydockershim",
        description="A Kubernetes CRI v1 server in front of the Docker Engine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the lines of --version
        allow_abbrev=False,
    )
    parser.add_argument(*_VERSION, action="version", version=_versions())
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="serve the CRI in the foreground", allow_abbrev=False)
    serve.set_defaults(command=_serve)
    doctor = commands.add_parser(
        "doctor", help="say what of this node works, and what to do about the rest", allow_abbrev=False
    )
    doctor.set_defaults(command=_doctor)
    config = commands.add_parser("config", help="show the effective settings", allow_abbrev=False)
    config.add_argument("--format", choices=list(show.FORMATS), default="table", help="default: table")
    config.set_defaults(command=_config)
    commands.add_parser("version", help="show versions").set_defaults(command=_version)
    for command in (serve, doctor, config):
        _add_settings(command)
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"TOML file with settings (default: {DEFAULT_FILE}, if it is there)"
    )
    settings = parser.add_argument_group("settings")
    for field in fields().values():
        names = [field.flag, *(alias for alias, name in legacy.ALIASES.items() if name == field.name)]
        words = f"{field.doc} Give {field.accepted}. Default: {show.text(field.default) or 'empty'}."
        settings.add_argument(*names, dest=field.name, metavar="VALUE", help=words.replace("%", "%%"))
    old = parser.add_argument_group("flags of cri-dockerd without an effect of their own")
    for entry in legacy.LEGACY:
        words = f"{entry.why[0].upper()}{entry.why[1:]}."
        nargs, const = ("?", "true") if entry.switch else (None, None)
        old.add_argument(entry.flag, dest=entry.flag, metavar="VALUE", nargs=nargs, const=const, help=words)
