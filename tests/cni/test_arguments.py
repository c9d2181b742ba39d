from typing import Any

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cni.arguments import (
    EGRESS_BANDWIDTH,
    INGRESS_BANDWIDTH,
    POD_ANNOTATIONS,
    bandwidth,
    capability_args,
    cni_args,
    dns,
    ip_ranges,
    port_mappings,
)
from shim.domain.errors import InvalidArgument


def test_cni_args_identify_the_pod_and_begin_with_ignore_unknown() -> None:
    metadata = pb.PodSandboxMetadata(name="web", namespace="shop", uid="u-1", attempt=2)

    assert cni_args(metadata, sandbox_id="c0ffee") == [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", "shop"),
        ("K8S_POD_NAME", "web"),
        ("K8S_POD_INFRA_CONTAINER_ID", "c0ffee"),
        ("K8S_POD_UID", "u-1"),
    ]


def test_mappings_without_a_host_port_are_left_out() -> None:
    mappings = [
        pb.PortMapping(container_port=80, host_port=8080),
        pb.PortMapping(protocol=pb.UDP, container_port=53, host_port=53, host_ip="127.0.0.1"),
        pb.PortMapping(protocol=pb.SCTP, container_port=99, host_port=9999, host_ip="::1"),
        pb.PortMapping(container_port=81, host_ip="unused"),
    ]

    assert port_mappings(mappings) == [
        {"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""},
        {"hostPort": 53, "containerPort": 53, "protocol": "udp", "hostIP": "127.0.0.1"},
        {"hostPort": 9999, "containerPort": 99, "protocol": "sctp", "hostIP": "::1"},
    ]


@pytest.mark.parametrize("spellings", [("", "0.0.0.0"), ("0.0.0.0", "")])
def test_two_spellings_of_the_unspecified_address_give_one_mapping_for_both_families(
    spellings: tuple[str, str],
) -> None:
    mappings = [pb.PortMapping(container_port=80, host_port=8080, host_ip=host_ip) for host_ip in spellings]

    assert port_mappings(mappings) == [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}]


def test_two_spellings_of_a_host_address_give_one_mapping() -> None:
    mappings = [
        pb.PortMapping(container_port=number, host_port=8080, host_ip=host_ip)
        for number, host_ip in enumerate(("0.0.0.0", "", "::1", "0:0::1"), 80)
    ]

    assert [(each["containerPort"], each["hostIP"]) for each in port_mappings(mappings)] == [(81, ""), (82, "::1")]


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("1k", 1000),
        ("1000", 1000),
        ("10M", 10_000_000),
        ("1G", 10**9),
        ("1T", 10**12),
        ("1P", 10**15),
        ("1Ki", 1024),
        ("1Mi", 2**20),
        ("1Gi", 2**30),
        ("1Ti", 2**40),
        ("0.5Mi", 2**19),
        (".5M", 500_000),
        ("1.M", 1_000_000),
        ("+2k", 2000),
        ("0.001E", 10**15),
        ("1e6", 10**6),
        ("1E6", 10**6),
        ("12e+5", 1_200_000),
        ("5e6m", None),
        ("1000000000m", 1_000_000),
        ("1000000000000u", 1_000_000),
        ("1000000000000000n", 1_000_000),
        ("1000001m", 1001),
        ("12.3456k", 12_346),
    ],
)
def test_bandwidth_is_parsed_as_a_kubernetes_quantity(text: str, bits: int | None) -> None:
    if bits is None:
        with pytest.raises(InvalidArgument, match="is not a quantity"):
            bandwidth({INGRESS_BANDWIDTH: text})
    else:
        assert bandwidth({INGRESS_BANDWIDTH: text})["ingressRate"] == bits


@pytest.mark.parametrize("key", [INGRESS_BANDWIDTH, EGRESS_BANDWIDTH])
@pytest.mark.parametrize(
    "text", ["", "k", "10 M", "10MB", "10K", "10m5", "0x10", "1e", "ten", "\u0661k", "1" * 60, "1k\n"]
)
def test_a_malformed_quantity_is_an_error_that_names_the_annotation(key: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^annotation {key}: .* is not a quantity"):
        bandwidth({key: text})


@pytest.mark.parametrize("text", ["0", "999", "-1M", "999999m", "1.1P", "1E", "1Pi", "1e999", "1e-9", "1Ei"])
def test_bandwidth_out_of_range_is_an_error_that_names_the_annotation(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^annotation {EGRESS_BANDWIDTH}: .* is not between 1k and 1P"):
        bandwidth({EGRESS_BANDWIDTH: text})


def test_each_direction_has_rate_and_burst() -> None:
    assert bandwidth({INGRESS_BANDWIDTH: "1M", EGRESS_BANDWIDTH: "2M", "other": "x"}) == {
        "ingressRate": 1_000_000,
        "ingressBurst": 2_147_483_647,
        "egressRate": 2_000_000,
        "egressBurst": 2_147_483_647,
    }


def test_dns_has_all_lists_of_a_pod_with_resolver_settings() -> None:
    config = pb.DNSConfig(servers=["10.96.0.10"], searches=["svc.local"], options=["ndots:5"])

    assert dns(config) == {"servers": ["10.96.0.10"], "searches": ["svc.local"], "options": ["ndots:5"]}
    assert dns(pb.DNSConfig()) == {}


@pytest.mark.parametrize(
    ("pod_ranges", "sets"),
    [
        ([], []),
        (["10.244.1.0/24"], [[{"subnet": "10.244.1.0/24"}]]),
        (["10.244.1.0/24", "fd00:10:244::/64"], [[{"subnet": "10.244.1.0/24"}], [{"subnet": "fd00:10:244::/64"}]]),
        (["fd00::/64", "10.1.0.0/24"], [[{"subnet": "fd00::/64"}], [{"subnet": "10.1.0.0/24"}]]),
        (["10.1.0.0/24", "10.2.0.0/24"], [[{"subnet": "10.1.0.0/24"}, {"subnet": "10.2.0.0/24"}]]),
    ],
    ids=["none", "v4", "dual-stack", "v6-first", "two-of-a-family"],
)
def test_ip_ranges_have_a_set_for_each_family(pod_ranges: list[str], sets: list[Any]) -> None:
    assert ip_ranges(pod_ranges) == sets


def test_a_plain_pod_has_no_capability_arguments() -> None:
    assert capability_args(pb.PodSandboxConfig(), pod_ranges=()) == {}


def test_all_capability_arguments_together() -> None:
    config = pb.PodSandboxConfig(
        port_mappings=[pb.PortMapping(container_port=80, host_port=8080)],
        annotations={INGRESS_BANDWIDTH: "1M", "team": "blue"},
        dns_config=pb.DNSConfig(servers=["10.96.0.10"]),
        linux=pb.LinuxPodSandboxConfig(cgroup_parent="/kubepods/burstable/pod1"),
    )

    assert capability_args(config, pod_ranges=("10.244.1.0/24",)) == {
        "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": ""}],
        "bandwidth": {"ingressRate": 1_000_000, "ingressBurst": 2_147_483_647},
        "dns": {"servers": ["10.96.0.10"], "searches": [], "options": []},
        "ipRanges": [[{"subnet": "10.244.1.0/24"}]],
        "cgroupPath": "/kubepods/burstable/pod1",
        POD_ANNOTATIONS: {INGRESS_BANDWIDTH: "1M", "team": "blue"},
    }
