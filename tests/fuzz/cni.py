"""Output of CNI plugins, and files of the CNI configuration and cache."""

import base64
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
from hypothesis import strategies as st

from shim.base.spawn import Outcome
from shim.cni.cache import (
    Attachment,
    Owner,
    attached_to,
    cached_attachments,
    cached_result,
    own_attachments,
    write_cached,
)
from shim.cni.conf import ConfError, NetworkConfig, parse_network, read_directory
from shim.cni.leases import leased
from shim.cni.plugin import Call, PluginError, failure_of, result_of
from shim.cni.result import ResultError, pod_ips, result_from_json
from shim.cni.template import render
from shim.domain.errors import InvalidArgument, ShimError
from tests.fuzz.target import NESTED, Run, Target, encoded, pure, shape

RESULTS = (
    {
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0", "sandbox": "/n", "mac": "00:00", "mtu": 1500}],
        "ips": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1", "interface": 0}, {"address": "fd00::1/64"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 5}],
        "dns": {"nameservers": ["10.0.0.1"]},
    },
    {"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.2/24", "routes": None}, "ip6": None, "dns": {}},
    {"cniVersion": "1.0.0", "code": 7, "msg": "no address", "details": "left"},
)
LIST = {
    "cniVersion": "1.0.0",
    "cniVersions": ["0.4.0", "1.0.0"],
    "name": "pods",
    "disableCheck": "true",
    "plugins": [{"type": "bridge", "capabilities": {"portMappings": True}, "ipam": {"type": "host-local"}}],
}
CALL = Call(
    binary=Path("/opt/cni/bin/bridge"), verb="ADD", container_id="c", netns="/n", ifname="eth0", args=(), bin_dirs=()
)
WORDS = (
    b'"ips":[',
    b'"interface":',
    b'"cniVersion":',
    b"null",
    b"true",
    b'"ip4":{"ip":"',
    b"0.4.0",
    b'"plugins":[{',
    b'"',
)


def _result(data: bytes) -> None:
    error = failure_of(CALL, Outcome(returncode=1, stdout=data, stderr=data))
    assert len(str(error).encode(errors="replace")) < 30_000
    raw = result_of(CALL, data)
    found = result_from_json(raw)
    assert all(isinstance(ip, str) for ip in pod_ips(found, ifname="eth0"))
    msgspec.json.encode(raw)


def _conf(data: bytes) -> None:
    for file in ("10.conflist", "10.conf"):
        with suppress(ConfError):
            network = parse_network(data, file=file)
            assert all("/" not in kind for kind in network.plugin_types)
            network.declares("portMappings")
            msgspec.json.encode(network.conflist)


@contextmanager
def _drop_in() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "10.conflist").write_text(json.dumps(LIST))
        path = Path(directory) / "pods" / "10.conf"
        path.parent.mkdir()

        def run(data: bytes) -> None:
            path.write_bytes(data)
            (entry,) = read_directory(Path(directory)).entries
            if isinstance(entry, NetworkConfig):
                assert len(entry.plugin_types) == 2
                assert all("/" not in kind for kind in entry.plugin_types)
            else:
                assert entry.reason.startswith("pods/10.conf")

        yield run


@contextmanager
def _cache() -> Iterator[Run]:
    owner = Owner(docker="/d", sandbox="k8s_POD_a")
    attachment = Attachment(conflist=LIST, container_id=CONTAINER, netns="/n", ifname="eth0", owner=owner)
    with tempfile.TemporaryDirectory() as directory:
        write_cached(Path(directory), attachment, result=RESULTS[0])
        (path,) = (Path(directory) / "results").iterdir()

        def run(data: bytes) -> None:
            path.write_bytes(data)
            cached_attachments(Path(directory), container_id=CONTAINER)
            cached_result(Path(directory), attachment)
            assert all(own.owner == owner for own in own_attachments(Path(directory), docker="/d", excluding=()))
            attached_to(Path(directory), network="pods")

        yield run


@contextmanager
def _lease() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pods" / "10.1.0.2"
        path.parent.mkdir()
        network = {**LIST, "plugins": [{"type": "bridge", "ipam": {"type": "host-local", "dataDir": directory}}]}

        def run(data: bytes) -> None:
            path.write_bytes(data)
            assert all(container and ifname for container, ifname in leased(network))

        yield run


def _template(data: bytes) -> None:
    content = render(data.decode(errors="replace"), ranges=("10.1.0.0/24", "fd00::/64"), source="/t")
    parse_network(content, file="x.conflist")


TEMPLATE = (
    b'{"cniVersion": "1.0.0", "name": "n", "plugins": [{"type": "a", "b": {{.PodCIDRRanges}}, "c": "{{.PodCIDR}}"}]}'
)
CONTAINER = "c0ffee00" * 8
ENTRY = {
    "kind": "cniCacheV1",
    "containerId": CONTAINER,
    "pydockershim": {"docker": "/d", "sandbox": "k8s_POD_a"},
    "config": base64.b64encode(json.dumps(LIST).encode()).decode(),
    "ifName": "eth0",
    "networkName": "pods",
    "cniArgs": [["a", "b"]],
    "capabilityArgs": {"a": []},
    "result": RESULTS[0],
}
TARGETS = (
    Target(
        name="cni-template",
        corpus=[TEMPLATE, TEMPLATE.replace(b".PodCIDRRanges", b" .Routes ")],
        words=(b"{{.PodCIDR}}", b"{{", b"}}", b".Routes", b'"plugins":[{'),
        declared=(InvalidArgument,),
        open=pure(_template),
    ),
    Target(
        name="cni-lease",
        corpus=[b"c0ffee\r\neth0", b"c0ffee"],
        words=(b"\r\n", b"eth0", b" "),
        declared=(ShimError,),
        open=_lease,
    ),
    Target(
        name="cni-result",
        corpus=[json.dumps(result).encode() for result in RESULTS],
        words=WORDS,
        declared=(PluginError, ResultError),
        open=pure(_result),
        strategy=encoded(st.one_of(*map(shape, RESULTS))),
        enormous=NESTED,
    ),
    Target(
        name="cni-conf",
        corpus=[json.dumps(LIST).encode(), json.dumps({"name": "n", "type": "bridge"}).encode()],
        words=WORDS,
        declared=(),
        open=pure(_conf),
        strategy=encoded(shape(LIST)),
        enormous=NESTED,
    ),
    Target(
        name="cni-drop-in",
        corpus=[json.dumps(LIST["plugins"][0]).encode()],
        words=WORDS,
        declared=(),
        open=_drop_in,
        strategy=encoded(shape(LIST["plugins"][0])),
        enormous=NESTED,
    ),
    Target(
        name="cni-cache",
        corpus=[json.dumps(ENTRY).encode()],
        words=WORDS,
        declared=(ShimError,),
        open=_cache,
        strategy=encoded(shape(ENTRY)),
        enormous=(*NESTED, lambda: b" " * (100 << 20)),
    ),
)
