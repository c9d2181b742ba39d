"""Conversion of stop signals between the CRI's and Docker's names. Pure."""

import signal

from shim.api.v1 import api_pb2 as pb

DEFAULT = "SIGTERM"
"""Docker's default stop signal."""

_PREFIX = "SIGNAL_"
"""Of the CRI's names."""
_RTMIN, _RTMAX, _LAST_ABOVE_RTMIN = 34, 64, 49
"""Numbers of real-time signals with glibc, and the last that is named relative to SIGRTMIN."""


def docker_signal(wanted: int) -> str:
    """Return Docker's name of a CRI signal; "" for the image's stop signal."""
    if wanted == pb.SIGNAL_RUNTIME_DEFAULT:
        return ""
    return pb.Signal.Name(wanted).removeprefix(_PREFIX).replace("PLUS", "+").replace("MINUS", "-")


def cri_signal(docker: str) -> pb.Signal:
    """Return the CRI's name of the signal that Docker sends for the text in a container or image.

    Docker accepts numbers, and names in any case with or without `SIG`. Return SIGNAL_RUNTIME_DEFAULT for a signal
    without a name in the CRI, and for an invalid text: Docker then only sends SIGKILL.
    """
    text = docker or DEFAULT
    if text.isdecimal():
        name = _name(int(text))
    else:
        name = "SIG" + text.upper().removeprefix("SIG").replace("+", "PLUS").replace("-", "MINUS")
    return getattr(pb, _PREFIX + name) if _PREFIX + name in _CRI else pb.SIGNAL_RUNTIME_DEFAULT


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
