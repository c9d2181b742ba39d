"""Error texts of the OCI runtime for a container it cannot start. Pure."""

_LAYERS = (
    "failed to create task for container: ",
    "failed to create shim task: ",
    "failed to create shim: ",
    "failed to start shim: ",
    "OCI runtime create failed: ",
    "OCI runtime start failed: ",
    "runc create failed: ",
    "runc start failed: ",
    "unable to start container process: ",
    "error during container init: ",
)
"""Prefixes added on the way from runc over containerd to Docker, in Engine 20.10 to 28."""

_NO_CODE = ": unknown"
"""The gRPC code of containerd's answer, which old Engines put behind the text, before any advice of Docker."""


def plain_start_error(text: str) -> str:
    """Strip the prefixes: the cause remains, such as `exec: "x": executable file not found in $PATH`."""
    cause = text.strip()
    while layer := next((layer for layer in _LAYERS if cause.startswith(layer)), ""):
        cause = cause.removeprefix(layer)
    if cause == text.strip():
        return text
    cause = cause.removesuffix(_NO_CODE).replace(f"{_NO_CODE}: Are you trying to", ": Are you trying to")
    return cause or text
