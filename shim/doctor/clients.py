"""Checks of the server: its socket, its unit, and whether the kubelet uses it."""

from collections.abc import Callable, Iterator
from pathlib import Path

from shim.config.model import Config
from shim.cri.endpoint import ACTIVATION
from shim.cri.probe import probe_at
from shim.cri.refusal import NO_START, WRONG_SETTINGS
from shim.doctor.findings import Finding
from shim.doctor.kubelet import check_endpoint
from shim.doctor.kubelet_settings import Kubelet
from shim.doctor.units import SERVICE, SOCKET, Unit, Units, listens_by_file
from shim.domain.errors import DeadlineExceeded, FailedPrecondition, NotFound, ShimError, Unavailable, Unsupported

OTHER_RUNTIMES = (Path("/run/containerd/containerd.sock"), Path("/run/crio/crio.sock"))
"""Other sockets that kubeadm looks for. Docker starts a containerd, whose CRI Docker does not use."""

_JOURNAL = f"journalctl --unit {SERVICE.removesuffix('.service')}"
_WITHOUT_DOCKER = "the server runs, but Docker does not answer it: see what is said of docker above"
_CORRECT = f"correct it: the server sees a file that changes; after a flag or variable of the unit, restart {SERVICE}"
_STARTS_AGAIN = "remove the cause: the server tries again within 30 s"
_FREE_ADDRESS = (
    f"set an address of this node with a free port (ss --listening --tcp --processes shows the others); then restart "
    f"{SERVICE}"
)
_RESTART = f"the server runs with earlier settings: systemctl restart {SERVICE}"
_EXIT_WRONG_SETTINGS = 2
_EXIT_NO_PROGRAM = 203
"""systemd's own, where ExecStart cannot be run (systemd.exec(5))."""


def check_clients(
    endpoint: str,
    *,
    units: Units,
    kubelet: Kubelet,
    has_network: Callable[[], bool],
    others: tuple[Path, ...] = OTHER_RUNTIMES,
) -> Iterator[Finding]:
    """Yield whether the server answers, how its unit does, and whether the kubelet and kubeadm come to it.

    `has_network` returns whether a server with the settings of now has a pod network.
    """
    address = _address(endpoint, units)
    answers = False
    if _would_start(address, units):
        # To connect would start the service, and nothing is changed here.
        text = f"does not run; systemd starts it with the first client of {address} ({SOCKET})"
        server = Finding("ok" if units.service.active == "inactive" else "warn", "server", text)
    else:
        server = _server(address, units, has_network=has_network)
        answers = server.level == "ok"
    # A failure is the cause of a warning.
    yield from sorted((server, _unit(units, answers=answers)), key=lambda finding: finding.level != "FAIL")
    if (endpoint_of_kubelet := check_endpoint(kubelet, address)) is not None:
        yield endpoint_of_kubelet
    if there := [str(path) for path in others if _is_there(path)]:
        text = f"--cri-socket {address}, since it also finds {' and '.join(there)}"
        yield Finding("ok", "kubeadm", text)


def _address(endpoint: str, units: Units) -> str:
    """Return where clients connect: with fd:// it is the socket unit that knows."""
    if endpoint != ACTIVATION:
        return endpoint
    listens = units.socket.listens or listens_by_file()
    return f"unix://{listens}" if listens.startswith("/") else Config().container_runtime_endpoint


def _would_start(address: str, units: Units) -> bool:
    held = units.socket.active == "active" and f"unix://{units.socket.listens}" == address
    return held and not units.service.runs


def _server(address: str, units: Units, *, has_network: Callable[[], bool]) -> Finding:
    try:
        found = probe_at(Path(address.removeprefix("unix://")))
    except NotFound:
        return _absent_server(address, units)
    except ShimError as error:
        return _failed_call(error, units)
    text = f"{found.runtime} answers at {address}"
    if found.trouble:
        return Finding("warn", "server", f"{text}, but is not ready: {found.trouble}", _WITHOUT_DOCKER)
    if found.network_trouble and has_network():
        return Finding("FAIL", "server", f"{text}, but has no pod network: {found.network_trouble}", _RESTART)
    if found.flaws:
        return Finding("warn", "server", f"{text}, but: {found.flaws}", _FREE_ADDRESS)
    return Finding("ok", "server", text)


def _failed_call(error: ShimError, units: Units) -> Finding:
    if isinstance(error, Unavailable) and WRONG_SETTINGS in str(error):
        return Finding("FAIL", "server", str(error), _CORRECT)
    if isinstance(error, Unavailable) and NO_START in str(error):
        return Finding("FAIL", "server", str(error), _STARTS_AGAIN)
    return Finding("warn", "server", str(error), _advice(error, units))


def _absent_server(address: str, units: Units) -> Finding:
    if units.service.runs and units.socket.active == "active":
        text = f"{address} has been removed, while {SERVICE} runs"
        return Finding("FAIL", "server", text, f"systemctl restart {SOCKET} {SERVICE}")
    advice = f"systemctl enable --now {SERVICE}" if units.service.is_installed else "pydockershim serve"
    return Finding("warn", "server", f"none runs at {address}", f"start it: {advice}")


def _advice(error: ShimError, units: Units) -> str:
    match error:
        case FailedPrecondition():
            return "run as root"
        case Unsupported():
            return "end what holds that socket, or choose another container_runtime_endpoint"
        case Unavailable():
            return _WITHOUT_DOCKER
        case DeadlineExceeded() if units.service.active not in {"", "inactive"}:
            return f"see what it does: {_JOURNAL}; then systemctl restart {SERVICE}"
        case _:
            return "find what holds that socket: ss --listening --unix --processes"


def _unit(units: Units, *, answers: bool) -> Finding:
    service = units.service
    if units.trouble:
        text = f"cannot be asked about: {units.trouble}" if units.booted else units.trouble
        return Finding("warn" if units.booted else "ok", "unit", text)
    if not service.is_installed:
        return Finding("ok", "unit", f"{SERVICE} is not installed: the server is started in another way")
    if service.load != "loaded":
        text = f"systemd cannot use {SERVICE}: {service.load}"
        advice = f"systemctl unmask {SERVICE} && systemctl restart {SERVICE}"
        if service.load != "masked":
            advice = f"systemctl status {SERVICE}"
        return Finding("warn" if answers else "FAIL", "unit", text, advice)
    if service.active == "failed" or service.starts_again:
        return _failed_unit(units, answers=answers)
    return _working_unit(units, answers=answers)


def _failed_unit(units: Units, *, answers: bool) -> Finding:
    service = units.service
    does = "has failed" if service.active == "failed" else "is started again and again"
    text = f"{SERVICE} {does}: {_how_it_ended(service)}"
    if units.cause:
        text = f"{text}: {units.cause}"
    return Finding("warn" if answers else "FAIL", "unit", text, _remedy(service))


def _how_it_ended(service: Unit) -> str:
    match service.result:
        case "exit-code" if service.status == _EXIT_WRONG_SETTINGS:
            return "exit status 2, a wrong flag or setting"
        case "exit-code" if service.status == _EXIT_NO_PROGRAM:
            return "exit status 203, the program of ExecStart= cannot be run"
        case "exit-code":
            return f"exit status {service.status}"
        case "signal" | "core-dump":
            return f"ended by signal {service.status}"
        case "oom-kill":
            return "ended for lack of memory"
        case other:
            return other or "no result"


def _remedy(service: Unit) -> str:
    if service.result == "exit-code" and service.status == _EXIT_NO_PROGRAM:
        return f"install pydockershim, or correct ExecStart= (systemctl edit --full {SERVICE})"
    if service.result == "exit-code" and service.status == _EXIT_WRONG_SETTINGS:
        return f"correct that setting, then systemctl restart {SERVICE}; more: {_JOURNAL}"
    if service.result == "oom-kill":
        return f"raise MemoryMax= (systemctl edit {SERVICE}); what it was doing: {_JOURNAL}"
    return f"see why: {_JOURNAL}"


def _working_unit(units: Units, *, answers: bool) -> Finding:
    service = units.service
    if not service.runs:
        return _stopped_unit(units, answers=answers)
    text = f"{SERVICE} is {service.active} ({service.sub})"
    if service.restarts:
        last = f", the last time after: {units.cause}" if units.cause else ""
        return Finding("warn", "unit", f"{text}; starts again: {service.restarts}{last}", f"see why: {_JOURNAL}")
    if service.file == "disabled":
        return Finding("warn", "unit", f"{text}, but not after a reboot", f"systemctl enable {SERVICE}")
    return Finding("ok", "unit", text)


def _stopped_unit(units: Units, *, answers: bool) -> Finding:
    text = f"{SERVICE} is {units.service.active}"
    if answers:
        text = f"{text}, though a server answers: another program holds the socket"
        return Finding("warn", "unit", text, "find it: ss --listening --unix --processes")
    if units.socket.active == "active":
        return Finding("ok", "unit", f"{text} until a client comes to {SOCKET}")
    sockets = [SOCKET] if units.socket.is_installed else []
    return Finding("FAIL", "unit", text, f"systemctl enable --now {' '.join([*sockets, SERVICE])}")


def _is_there(path: Path) -> bool:
    try:
        path.stat()  # Path.exists hides errors, from Python 3.14 on all of them
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # in a directory of others: to name our socket does no harm
        return True
    return True
