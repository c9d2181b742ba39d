"""Checks of the kubelet's settings: its socket, cgroup driver, swap, pod address ranges, feature gates and flags."""

import ipaddress
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shim.base.atomic_files import read_regular
from shim.base.proc import lines
from shim.base.spawn import run_bounded
from shim.checkpoint import root as state
from shim.checkpoint.pod_cidr import FILE_LIMIT
from shim.cni.conf import NetworkConfig, choose, read_directory
from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.kubelet_settings import RESTART, Kubelet
from shim.doctor.pod_ranges import pod_ranges
from shim.domain.cidr import parse_pod_cidr
from shim.domain.errors import InvalidArgument, ShimError, reason_of

DEFAULT_ENDPOINT = "unix:///run/containerd/containerd.sock"
"""The kubelet's default."""
_DEFAULT_DRIVER = "cgroupfs"

_SWAPS = Path("/proc/swaps")
_SWAP_OFF = "swapoff --all, and take swap out of /etc/fstab (sed -i '/\\sswap\\s/s/^/#/' /etc/fstab)"

_ASKS_FOR_DRIVER = "KubeletCgroupDriverFromCRI"
_ASKS_SINCE = (1, 31)
"""The first version with that gate on by default."""

_WEBSOCKETS = "ExtendWebSocketsToKubelet"

_REMOVED_FLAGS = {"network-plugin": (1, 24), "container-runtime": (1, 27), "pod-infra-container-image": (1, 35)}
"""Flags of Docker nodes, and the first version of the kubelet that does not start with them."""

_VERSION_SECONDS = 4.0


def check_kubelet(
    config: Config, kubelet: Kubelet, environ: Mapping[str, str], *, swaps: Path = _SWAPS
) -> Iterator[Finding]:
    """Yield the findings about settings of the kubelet that concern neither its socket nor Docker."""
    if kubelet.problem:
        advice = f"correct that file, then {RESTART}: the kubelet does not start with it"
        yield Finding("FAIL", "kubelet", kubelet.problem, advice)
    yield from _swap(kubelet, swaps)
    yield from _removed_flags(kubelet, environ)
    yield from _pod_cidr(config, kubelet)
    yield from _gates(kubelet)


def check_endpoint(kubelet: Kubelet, address: str) -> Finding | None:
    """Return whether the kubelet uses the server at `address`, which begins with `unix://`; None if it is unknown."""
    if not kubelet.exists:
        return Finding("ok", "kubelet", f"none is configured here; it takes --container-runtime-endpoint={address}")
    if kubelet.problem and "containerRuntimeEndpoint" not in kubelet.settings:
        return None
    used = str(kubelet.value("containerRuntimeEndpoint") or DEFAULT_ENDPOINT)
    if _same_socket(used, address):
        return Finding("ok", "kubelet", f"uses {address}")
    found = kubelet.settings.get("containerRuntimeEndpoint")
    text = f"uses {used} ({found or 'its default'}), and no pod comes to {address}"
    return Finding("FAIL", "kubelet", text, kubelet.command_to_set("containerRuntimeEndpoint", address))


def _same_socket(one: str, other: str) -> bool:
    """Return whether two addresses name the same file: /var/run is a link to /run on most nodes."""
    return os.path.realpath(one.removeprefix("unix://")) == os.path.realpath(other.removeprefix("unix://"))


def check_driver(kubelet: Kubelet, docker: str, environ: Mapping[str, str]) -> Finding | None:
    """Return whether the kubelet uses Docker's cgroup driver; None where no kubelet is configured, or it is unknown."""
    if not kubelet.exists or (kubelet.problem and "cgroupDriver" not in kubelet.settings):
        return None
    driver = str(kubelet.value("cgroupDriver") or _DEFAULT_DRIVER)
    if driver == docker:
        return Finding("ok", "cgroup driver", f"{docker}, as the kubelet has it")
    version = _version(kubelet, environ)
    if _asks_for_driver(kubelet, version):
        return Finding("ok", "cgroup driver", f"{docker}: the kubelet asks the server for it ({_ASKS_FOR_DRIVER})")
    text = f"the kubelet has {driver}, Docker has {docker}"
    if docker == "systemd":
        advice = kubelet.command_to_set("cgroupDriver", docker)
    else:
        advice = f"drain the node, then: pydockershim install --docker && systemctl restart docker && {RESTART}"
    if version is None and kubelet.gate(_ASKS_FOR_DRIVER) is None:
        text += ", and a kubelet before 1.31 does not ask for Docker's"
        return Finding("warn", "cgroup driver", text, advice)
    return Finding("FAIL", "cgroup driver", f"{text}: no pod starts", advice)


def _asks_for_driver(kubelet: Kubelet, version: tuple[int, int] | None) -> bool:
    gate = kubelet.gate(_ASKS_FOR_DRIVER)
    return gate if gate is not None else version is not None and version >= _ASKS_SINCE


def _version(kubelet: Kubelet, environ: Mapping[str, str]) -> tuple[int, int] | None:
    """Return major and minor version of the kubelet's program; None where there is no program, or it does not say."""
    program = kubelet.program or shutil.which("kubelet", path=environ.get("PATH"))
    if program is None:
        return None
    try:
        said = run_bounded(
            Path(program),
            arguments=["--version"],
            environment=dict(environ),
            stdin=b"",
            timeout=_VERSION_SECONDS,
            what="kubelet --version",
        )
    except (OSError, ShimError):
        return None
    found = re.search(rb"v(\d+)\.(\d+)\.", said.stdout)
    return None if found is None else (int(found[1]), int(found[2]))


def _swap(kubelet: Kubelet, swaps: Path) -> Iterator[Finding]:
    try:
        areas = [line.split()[0].decode(errors="replace") for line in lines(swaps.read_bytes())[1:]]
    except OSError as error:
        yield Finding("warn", "swap", f"{swaps}: {reason_of(error)}")
        return
    if not areas:
        yield Finding("ok", "swap", "none")
        return
    named = ", ".join(areas)
    if kubelet.value("failSwapOn", default=True) is False:
        yield Finding("ok", "swap", f"{named}, which the kubelet accepts ({kubelet.settings['failSwapOn']})")
        return
    advice = f"{_SWAP_OFF}; or let the kubelet accept it: {kubelet.command_to_set('failSwapOn', 'false')}"
    if kubelet.exists:
        yield Finding("FAIL", "swap", f"{named}: the kubelet does not start with swap", advice)
    else:
        yield Finding("warn", "swap", f"{named}: a kubelet does not start with swap by default", _SWAP_OFF)


def _removed_flags(kubelet: Kubelet, environ: Mapping[str, str]) -> Iterator[Finding]:
    given = [name for name in _REMOVED_FLAGS if name in kubelet.flags]
    if not given:
        return
    version = _version(kubelet, environ)
    if version is None:
        return
    for name in given:
        if version >= _REMOVED_FLAGS[name]:
            since = ".".join(map(str, _REMOVED_FLAGS[name]))
            text = f"a kubelet of {since} or newer does not start with --{name}"
            file = next((each for each in kubelet.flag_files if re.search(rf"--{name}(?![\w-])", _text(each))), None)
            advice = f"take --{name} out of the kubelet's unit (systemctl cat kubelet), then {RESTART}"
            if file is not None:
                advice = f"sed -i 's#--{name}[= ][^ \"]*##' {file} && {RESTART}"
            yield Finding("FAIL", "kubelet", text, advice)


def _pod_cidr(config: Config, kubelet: Kubelet) -> Iterator[Finding]:
    """Compare the pod addresses of the node, as the cluster has them, with the network in force."""
    if config.network_plugin == "none":
        return
    wanted = _node_ranges(config, kubelet)
    network = choose(read_directory(config.cni_conf_dir), bin_dirs=config.cni_bin_dir).network
    if not wanted or network is None or network.declares("ipRanges"):
        return
    ranges = pod_ranges(network, config)
    for text in ranges:
        other = _elsewhere(text, wanted)
        if other:
            yield _wrong_range(config, network, has=text, wants=other)
            return
    if ranges:
        yield Finding("ok", "pod CIDR", f"{', '.join(wanted)}, as the cluster gave it to this node")


def _wrong_range(config: Config, network: NetworkConfig, *, has: str, wants: str) -> Finding:
    file = config.cni_conf_dir / network.file
    text = f"pods get addresses of {has} ({file}), and the cluster sends packets for {wants} to this node"
    return Finding("warn", "pod CIDR", text, f"sed -i 's#{has}#{wants}#' {file}; it holds for new pods")


def _elsewhere(text: str, wanted: Sequence[str]) -> str:
    """Return the range of the same family, where none of these overlaps `text`; else an empty text."""
    has = ipaddress.ip_network(text, strict=False)
    same = [each for each in wanted if ipaddress.ip_network(each, strict=False).version == has.version]
    overlaps = any(has.overlaps(ipaddress.ip_network(each, strict=False)) for each in same)
    return "" if overlaps or not same else same[0]


def _node_ranges(config: Config, kubelet: Kubelet) -> tuple[str, ...]:
    """Return the pod ranges of this node: the ranges that the kubelet sent last, else the ranges in its settings."""
    stored = _text(config.root_directory / state.POD_CIDR)
    for text in (stored, str(kubelet.value("podCIDR") or "")):
        try:
            if found := parse_pod_cidr(text):
                return found
        except InvalidArgument:
            continue  # the server ignores it as well
    return ()


def _text(path: Path) -> str:
    try:
        return read_regular(path, most=FILE_LIMIT).decode(errors="replace")
    except OSError:
        return ""


def _gates(kubelet: Kubelet) -> Iterator[Finding]:
    if kubelet.gate(_WEBSOCKETS) is False:
        text = f"{_WEBSOCKETS} is off, as cri-dockerd needs it: this server speaks WebSocket, so it may be on"
        yield Finding("ok", "feature gates", text)
