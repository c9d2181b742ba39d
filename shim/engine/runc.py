"""What the OCI runtime says of a container it cannot start. Pure."""

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
"""Who told whom that it failed, from Docker over containerd down to runc, in the words of Engine 20.10 to 28."""

_NO_CODE = ": unknown"
"""The gRPC code of containerd's answer, which old Engines put behind the text, before an advice of Docker's own."""


def plain_start_error(text: str) -> str:
    """Cut off the layers above the cause: what is left is such as `exec: "x": executable file not found in $PATH`."""
    cause = text.strip()
    while layer := next((layer for layer in _LAYERS if cause.startswith(layer)), ""):
        cause = cause.removeprefix(layer)
    if cause == text.strip():
        return text
    cause = cause.removesuffix(_NO_CODE).replace(f"{_NO_CODE}: Are you trying to", ": Are you trying to")
    return cause or text
