"""Files for a node: systemd units, CNI examples, configuration, script of the OCI runtime.

`systemd` and `cni` are links in a checkout and directories in a wheel, so the repository has each file once.
"""

import shlex
from importlib.resources import files

UNITS = (
    "pydockershim.service",
    "pydockershim.socket",
    "pydockershim.service.d/socket-activation.conf",
    "pydockershim-exec.service",
    "pydockershim-exec.socket",
)
"""Paths below the directory of units."""
AS_CRI_DOCKERD = ("pydockershim.service.d/as-cri-dockerd.conf", "pydockershim.socket.d/as-cri-dockerd.conf")
"""Drop-ins that add the names of cri-dockerd's units as aliases."""

_CONFLIST = ".conflist"


def unit(name: str) -> str:
    """Return the text of a unit in `UNITS`."""
    return files(__name__).joinpath("systemd", name).read_text()


def alias_unit(name: str) -> str:
    """Return the text of a drop-in in `AS_CRI_DOCKERD`."""
    return files(__name__).joinpath("systemd", "as-cri-dockerd", name).read_text()


def example_names() -> list[str]:
    """Return the names of the CNI examples, without their suffix."""
    found = (entry.name for entry in files(__name__).joinpath("cni").iterdir())
    return sorted(name.removesuffix(_CONFLIST) for name in found if name.endswith(_CONFLIST))


def example(name: str) -> str:
    """Return the text of an example in `example_names`."""
    return files(__name__).joinpath("cni", name + _CONFLIST).read_text()


def configuration() -> str:
    """Return the text of config.toml, which sets nothing.

    It must be the same in every release: package managers ask the user if both a release and the user changed a file.
    """
    return files(__name__).joinpath("config.toml").read_text()


def oci_runtime(*, python: str, program: str) -> str:
    """Return the script of the OCI runtime for the interpreter `python` and the `program` of `shim.oci_runtime`."""
    text = files(__name__).joinpath("oci-runtime").read_text()
    return text.replace("@PYTHON@", shlex.quote(python)).replace("@PROGRAM@", shlex.quote(program))
