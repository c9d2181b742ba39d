"""Stop signals, in the CRI's names and in Docker's. Pure."""

import signal

from shim.api.v1 import api_pb2 as pb

DEFAULT = "SIGTERM"
"""What Docker sends by default."""

_RTMIN, _RTMAX, _LAST_ABOVE_RTMIN = 34, 64, 49
"""As the kernel numbers them for a process with glibc, and the last that is counted from the lower end."""


def docker_signal(wanted: int) -> str:
    """Return Docker's name of a CRI signal; empty for the image's own."""
    if wanted == pb.RUNTIME_DEFAULT:
        return ""
    return pb.Signal.Name(wanted).replace("PLUS", "+").replace("MINUS", "-")


def cri_signal(docker: str) -> pb.Signal:
    """Return the CRI's name of what Docker will send for the text of a container or an image.

    Docker reads numbers, and names in any case with or without `SIG`. RUNTIME_DEFAULT for what the CRI has no name
    for, and for what is no signal: there Docker has nothing to send, and comes to SIGKILL.
    """
    text = docker or DEFAULT
    if text.isdecimal():
        name = _name(int(text))
    else:
        name = "SIG" + text.upper().removeprefix("SIG").replace("+", "PLUS").replace("-", "MINUS")
    return getattr(pb, name) if name in _CRI else pb.RUNTIME_DEFAULT


_CRI = frozenset(pb.Signal.keys())


def _name(number: int) -> str:
    if _RTMIN < number <= _LAST_ABOVE_RTMIN:
        return f"SIGRTMINPLUS{number - _RTMIN}"
    if _LAST_ABOVE_RTMIN < number < _RTMAX:
        return f"SIGRTMAXMINUS{_RTMAX - number}"
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""
