"""Whether NRI plugins can connect, and change more than limits."""

from collections.abc import Iterator

from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.domain.errors import reason_of
from shim.nri.listener import listening_pid, process_name

_SUBJECT = "NRI"


def check_nri(config: Config) -> Iterator[Finding]:
    """Yield who listens on the socket of NRI; nothing where that is switched off."""
    if not config.nri or config.nri_disable_connections:
        return
    path = config.nri_socket_path
    try:
        pid = listening_pid(path)
    except OSError as error:
        yield Finding("warn", _SUBJECT, f"{path}: {reason_of(error)}", "give nri_socket_path another value")
        return
    if pid is None:
        yield Finding("ok", _SUBJECT, f"plugins can connect to {path} once the server runs")
        return
    program = process_name(pid)
    if "pydockershim" in program or program.startswith("python"):
        yield Finding("ok", _SUBJECT, f"plugins connect to {path} (process {pid})")
    else:
        text = f"{program} (process {pid}) listens on {path}: plugins see its containers and not those of Docker"
        yield Finding("warn", _SUBJECT, text, "give nri_socket_path another value, or switch off NRI there")
