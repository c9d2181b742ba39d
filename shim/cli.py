# ruff: noqa: T201 - commands print
"""The command line: `serve`, `doctor`, `config`, `install`, `uninstall`, `version`.

Each setting in `shim.config.model` is a flag.
"""

import argparse
import difflib
import gc
import math
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version as installed
from itertools import chain
from pathlib import Path
from typing import NoReturn

from shim import __version__, share
from shim.api.v1 import CRI_VERSION
from shim.config import cri_dockerd_flags, show
from shim.config.fields import fields
from shim.config.load import DEFAULT_FILE, Loaded, drop_in_directory, files_read, load, misspelt_variables
from shim.config.model import Config
from shim.domain.errors import InvalidArgument, ShimError

EXIT_FAILED = 1
EXIT_USAGE = 2
"""Wrong flags, settings or file contents; the unit does not restart the server, since that would not help."""

SINGLE_FILE = "PYDOCKERSHIM_SINGLE_FILE"
"""Variable with the path of the single-file program, which sets it before it runs its unpacked environment."""

_VERSION = ("--version", "--buildinfo")
_WITHOUT_COMMAND = {*_VERSION, "--help"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; print an expected failure as a line on standard error."""
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
        # The reader has closed the pipe (`| head`). Python must not flush standard output at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    return code


def _with_command(words: Sequence[str]) -> Sequence[str]:
    """Prepend `serve` if there are only flags: cri-dockerd has no commands, and unit files for it name none."""
    flags_alone = words and words[0].startswith("--") and words[0] not in _WITHOUT_COMMAND
    return ["serve", *words] if flags_alone else words


def _print_error(error: ShimError, code: int) -> int:
    print(f"pydockershim: error: {error}", file=sys.stderr)
    return code


def _serve(given: argparse.Namespace) -> int:
    environ = dict(os.environ)
    try:
        loaded, warnings = _settings(given)
    except ShimError as error:
        _refuse_until_corrected(error, given, environ)
        raise
    try:
        return _serve_with(loaded, warnings, reread=lambda: _settings(given)[0].config)
    except ShimError as error:
        _refuse_until_corrected(error, given, environ, loaded.config)
        raise


def _refuse_until_corrected(
    error: ShimError, given: argparse.Namespace | None, environ: Mapping[str, str], config: Config | None = None
) -> None:
    """Answer clients with the error and start anew once it is corrected; do nothing without a socket of systemd.

    `config` holds the settings if they can be read: then a file that they name may be wrong, or another obstacle may
    go away by itself. `given` is None if the flags are wrong, which no file can correct.
    """
    from shim.base import log  # noqa: PLC0415 - as below
    from shim.cri.activation import is_socket_passed  # noqa: PLC0415
    from shim.daemon.misconfigured import START_AGAIN_SECONDS, refuse_until_corrected  # noqa: PLC0415

    if not is_socket_passed(environ):
        return

    def files() -> list[Path]:
        if given is None:
            return []
        named = [] if config is None else [Path(path) for name in _FILES if (path := getattr(config, name))]
        return [*files_read(given.config), *named]

    def check() -> ShimError | None:
        try:
            if given is not None:
                _settings(given)
        except ShimError as still:
            return still
        return None

    log.configure(level="info", style="auto")
    # The error of unreadable settings is computed again, since the files may have changed.
    is_found_again = given is not None and config is None
    is_of_start = config is not None and not isinstance(error, InvalidArgument)
    refuse_until_corrected(
        None if is_found_again else error,
        files=files,
        check=check,
        environ=environ,
        most=START_AGAIN_SECONDS if is_of_start else math.inf,
    )


_FILES = (
    "root_directory",
    *("streaming_tls_cert_file", "streaming_tls_key_file", "streaming_tls_client_ca_file"),
    *("image_credential_provider_config", "image_credential_provider_bin_dir"),
)
"""Settings that name files and a directory which the server needs at its start."""


def _serve_with(loaded: Loaded, warnings: Sequence[str], *, reread: Callable[[], Config]) -> int:
    # Loading gRPC and structlog takes a third of a second, and other commands do not need them. Garbage collection
    # would take a tenth of that, and find nothing.
    gc.disable()
    import structlog  # noqa: PLC0415

    from shim.base import log  # noqa: PLC0415
    from shim.daemon.serve import serve  # noqa: PLC0415

    gc.enable()
    log.configure(level=loaded.config.log_level, style=loaded.config.log_format)
    for warning in warnings:
        structlog.get_logger(__name__).warning(warning)

    status = 0 if serve(loaded.config, reread=reread) else EXIT_FAILED
    # Python would wait for threads that hang, such as the thread of an RPC that did not end.
    sys.stdout.flush()
    os._exit(status)


def _doctor(given: argparse.Namespace) -> int:
    from shim.doctor.check import check  # noqa: PLC0415 - other commands do not need it
    from shim.doctor.findings import Finding, as_json, failed, shown  # noqa: PLC0415

    config, wrong = Config(), []
    try:
        loaded, warnings = _settings(given)
        _warn(warnings)
        config = loaded.config
    except ShimError as error:
        advice = "correct it: the server does not start; the other checks use the default settings"
        wrong = [Finding("FAIL", "settings", str(error), advice)]
    findings = []
    for finding in chain(wrong, check(config, environ=os.environ)):
        findings.append(finding)
        if given.format == "text":
            print(shown(finding), flush=True)  # at once: the next check may take seconds
    if given.format == "json":
        print(as_json(findings))
    return EXIT_FAILED if failed(findings) else 0


def _config(given: argparse.Namespace) -> int:
    if given.reference:
        print(show.reference(), end="")
        return 0
    loaded, warnings = _settings(given)
    _warn(warnings)
    print(show.FORMATS[given.format](loaded))
    return 0


def _install(given: argparse.Namespace) -> int:
    from shim.install.install import Installation, Options  # noqa: PLC0415 - as in doctor
    from shim.install.steps import run_steps  # noqa: PLC0415

    options = Options(
        root=given.root.absolute(),
        docker=given.docker,
        cni=given.cni,
        as_cri_dockerd=given.as_cri_dockerd,
        start=given.start,
        from_package=given.from_package,
    )
    installation = Installation(options=options, command=_own_command(), environ=os.environ)
    run_steps(installation.steps(), announce=_announce, dry=given.dry_run)
    if options.start and not given.dry_run:
        print("next: pydockershim doctor")
    return 0


def _uninstall(given: argparse.Namespace) -> int:
    from shim.install.steps import run_steps  # noqa: PLC0415 - as in doctor
    from shim.install.uninstall import Removal  # noqa: PLC0415

    root = given.root.absolute()
    try:
        config = load(flags={}, environ=os.environ, file=None, root=root).config
    except ShimError as error:
        if not given.force:
            raise
        _warn([f"{error}; the default settings are used"])  # a package must be removable with wrong settings
        config = Config()
    # A single file runs from bin/python3 of the environment that it has unpacked.
    unpacked = Path(sys.executable).parents[2] if SINGLE_FILE in os.environ and os.geteuid() == 0 else None
    removal = Removal(
        root=root,
        force=given.force,
        config=config,
        environ=os.environ,
        keep_configuration=given.keep_configuration,
        unpacked=unpacked,
    )
    run_steps(removal.steps(), announce=_announce, dry=given.dry_run)
    return 0


def _announce(words: str) -> None:
    print(words, flush=True)


def _own_command() -> str:
    """Return the path of this program for a unit file."""
    named = os.environ.get(SINGLE_FILE) or sys.argv[0]
    started = Path(named).absolute()
    return str(started if started.name != "__main__.py" else Path(sys.executable).with_name("pydockershim"))


def _warn(warnings: Sequence[str]) -> None:
    for warning in warnings:
        print(f"pydockershim: warning: {warning}", file=sys.stderr)


def _exec_program(_given: argparse.Namespace) -> int:
    from shim import own_exec  # noqa: PLC0415

    program = str(Path(own_exec.__file__).with_name("__main__.py"))
    os.execve(sys.executable, [sys.executable, "-IS", program, own_exec.LISTEN], {})  # noqa: S606


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
    old = {entry.flag: text for entry in cri_dockerd_flags.IGNORED if (text := texts.get(entry.flag)) is not None}
    loaded = load(flags=flags, environ=os.environ, file=given.config)
    return loaded, [*cri_dockerd_flags.warnings(old), *misspelt_variables(os.environ)]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Print the error and exit; a server that systemd has started answers its clients with the error first.

        The usage, which has all flags of a command, would hide the error.
        """
        words = sys.argv[1:]
        message = f"{message}{_perhaps(message)}"
        if next(iter(_with_command(words)), "") == "serve":
            _refuse_until_corrected(InvalidArgument(message), None, dict(os.environ))
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\nsee {self.prog} --help\n")


def _perhaps(message: str) -> str:
    """Return the flag that is most like the first unknown flag of an error of argparse."""
    unknown = re.match("unrecognized arguments: (--[a-z0-9-]+)", message)
    flags = [field.flag for field in fields().values()]
    near = difflib.get_close_matches(unknown[1], flags, n=1) if unknown else []
    return f", perhaps {near[0]}" if near else ""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line, which also generates the man page and the completions."""
    parser = _Parser(
        prog="pydockershim",
        description="A Kubernetes CRI v1 server in front of the Docker Engine.",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # keeps the lines of --version
        allow_abbrev=False,
    )
    parser.add_argument(*_VERSION, action="version", version=_versions())
    commands = parser.add_subparsers(required=True, metavar="command")
    serve = commands.add_parser("serve", help="serve the CRI in the foreground", allow_abbrev=False)
    serve.set_defaults(command=_serve)
    doctor = commands.add_parser("doctor", help="check this node, and say how to fix each problem", allow_abbrev=False)
    doctor.add_argument(
        "--format", choices=["text", "json"], default="text", help="how findings are shown; default: text"
    )
    doctor.set_defaults(command=_doctor)
    config = commands.add_parser("config", help="show the effective settings", allow_abbrev=False)
    config.add_argument("--format", choices=list(show.FORMATS), default="table", help="default: table")
    config.add_argument("--reference", action="store_true", help="show every setting with its meaning and default")
    config.set_defaults(command=_config)
    commands.add_parser("version", help="show versions").set_defaults(command=_version)
    exec_program = commands.add_parser("exec-program", help="run commands in containers, started by systemd")
    exec_program.set_defaults(command=_exec_program)
    _add_installation(commands)
    for command in (serve, doctor, config):
        _add_settings(command)
    return parser


def _add_installation(commands: "argparse._SubParsersAction[_Parser]") -> None:
    install = commands.add_parser(
        "install",
        help="install units, configuration and crictl.yaml on this node, and start the server",
        allow_abbrev=False,
    )
    install.set_defaults(command=_install)
    install.add_argument(
        "--docker",
        action="store_true",
        help="set live-restore, the OCI runtime and the systemd cgroup driver in Docker's daemon.json",
    )
    install.add_argument("--cni", choices=share.example_names(), help="install an example as the pod network of a node")
    install.add_argument(
        "--as-cri-dockerd", action="store_true", help="also give command and units the names of cri-dockerd's"
    )
    install.add_argument("--no-start", dest="start", action="store_false", help="enable the server, do not start it")
    install.add_argument("--from-package", action="store_true", help=argparse.SUPPRESS)  # packaging/scripts
    uninstall = commands.add_parser("uninstall", help="stop the server and undo what install did", allow_abbrev=False)
    uninstall.set_defaults(command=_uninstall)
    uninstall.add_argument(
        "--force", action="store_true", help="even with wrong settings, or with pods on the node, whose state is kept"
    )
    uninstall.add_argument(
        "--keep-configuration",
        action="store_true",
        help="keep Docker's daemon.json, crictl.yaml, the CNI configuration and the settings",
    )
    for command in (install, uninstall):
        command.add_argument("--dry-run", action="store_true", help="only say what would be done")
        command.add_argument(
            "--root", type=Path, default=Path("/"), metavar="DIR", help="root directory of a node that is not running"
        )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"TOML file with settings (default: {DEFAULT_FILE} and {drop_in_directory()}/*.toml)",
    )
    settings = parser.add_argument_group("settings")
    for field in fields().values():
        names = [field.flag, *(alias for alias, name in cri_dockerd_flags.ALIASES.items() if name == field.name)]
        words = f"{field.doc} Give {field.accepted}. Default: {show.text(field.default) or 'empty'}."
        settings.add_argument(*names, dest=field.name, metavar="VALUE", help=words.replace("%", "%%"))
    old = parser.add_argument_group("flags of cri-dockerd that have no effect here")
    for entry in cri_dockerd_flags.IGNORED:
        words = f"{entry.why[0].upper()}{entry.why[1:]}."
        nargs, const = ("?", "true") if entry.switch else (None, None)
        old.add_argument(entry.flag, dest=entry.flag, metavar="VALUE", nargs=nargs, const=const, help=words)
