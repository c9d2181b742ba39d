"""Writes the CNI configuration of a node without a network add-on, from the template of `cni_conf_template`."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from shim.base.atomic_files import read_regular
from shim.cni.host_files import remove_file, write_file
from shim.cni.template import FILE, render
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of
from shim.hostfs.client import HostCall, call_here

TEMPLATE_LIMIT = 64 << 10
"""Bytes of the template: its result must fit in one message to the helper process."""

_SAMPLE_RANGES = ("10.244.0.0/24", "fd00:10:244::/64")
"""Ranges for the check of a template."""

log = structlog.get_logger(__name__)


def prepare_cni_conf(config: Config, *, ranges: Sequence[str], call: HostCall = call_here) -> None:
    """Check the template and write the configuration when the server starts; without `ranges` remove the file.

    Raise FailedPrecondition if the template cannot be read, InvalidArgument if it is wrong. `call` reaches the template
    and the directory, and raises DeadlineExceeded if the access hangs.
    """
    if not config.cni_conf_template:
        return
    _render(config, ranges=_SAMPLE_RANGES, call=call)
    if ranges:
        write_cni_conf(config, ranges=ranges, call=call)
    else:
        remove = partial(remove_file, config.cni_conf_dir / FILE)
        call(remove, path=str(config.cni_conf_dir), what="remove cni configuration")


def write_cni_conf(config: Config, *, ranges: Sequence[str], call: HostCall = call_here) -> None:
    """Write the configuration for these ranges, unless the file has it already or no template is configured.

    Errors and `call` as for `prepare_cni_conf`; ShimError or ResourceExhausted if the file cannot be written.
    """
    if not config.cni_conf_template or not ranges:
        return
    path, content = config.cni_conf_dir / FILE, _render(config, ranges=ranges, call=call)
    if call(partial(write_file, path, content), path=str(config.cni_conf_dir), what="write cni configuration"):
        log.info("wrote CNI configuration", file=str(path), ranges=list(ranges))


def _render(config: Config, *, ranges: Sequence[str], call: HostCall) -> bytes:
    source = config.cni_conf_template
    read = partial(read_regular, Path(source), most=TEMPLATE_LIMIT)
    try:
        template = call(read, path=source, what="read cni_conf_template").decode()
    except OSError as error:
        raise FailedPrecondition(f"cni_conf_template {source}: cannot be read: {reason_of(error)}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"cni_conf_template {source}: is not UTF-8: {error}") from error
    return render(template, ranges=ranges, source=source)
