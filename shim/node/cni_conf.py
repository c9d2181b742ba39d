"""The CNI configuration that this server writes itself, for nodes without a network add-on."""

from collections.abc import Sequence
from pathlib import Path

import structlog

from shim.base.atomic_files import failing_as, read_regular, remove_file, write_atomically
from shim.cni.template import FILE, render
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of

TEMPLATE_LIMIT = 1 << 20
"""Most bytes of the template."""

_ANY = ("10.244.0.0/24", "fd00:10:244::/64")
"""Ranges to try a template with."""

log = structlog.get_logger(__name__)


def prepare_cni_conf(config: Config, *, ranges: Sequence[str]) -> None:
    """Write the configuration at the start, if ranges are known; one for ranges that are not known any more goes.

    FailedPrecondition where the template cannot be read, InvalidArgument where it is wrong, also without ranges.
    """
    if not config.cni_conf_template:
        return
    _rendered(config, ranges=_ANY)
    if ranges:
        write_cni_conf(config, ranges=ranges)
    else:
        remove_file(config.cni_conf_dir / FILE)


def write_cni_conf(config: Config, *, ranges: Sequence[str]) -> None:
    """Write the configuration for these ranges, where the setting asks for one; the same again changes nothing.

    FailedPrecondition or InvalidArgument as above; ShimError or ResourceExhausted when the disk does not take it.
    """
    if not config.cni_conf_template or not ranges:
        return
    path, content = config.cni_conf_dir / FILE, _rendered(config, ranges=ranges)
    if _content(path) == content:
        return
    with failing_as(f"create the directory {path.parent}"):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    log.info("wrote CNI configuration", file=str(path), ranges=list(ranges))


def _rendered(config: Config, *, ranges: Sequence[str]) -> bytes:
    source = config.cni_conf_template
    try:
        template = read_regular(Path(source), most=TEMPLATE_LIMIT).decode()
    except OSError as error:
        raise FailedPrecondition(f"cni_conf_template {source}: cannot be read: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"cni_conf_template {source}: is not UTF-8: {error}") from error
    return render(template, ranges=ranges, source=source)


def _content(path: Path) -> bytes | None:
    try:
        return read_regular(path, most=TEMPLATE_LIMIT * 2)
    except OSError:
        return None
