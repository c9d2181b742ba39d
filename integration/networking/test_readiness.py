"""STATUS of plugins in the readiness of the node, and CHECK in the status of a pod."""

from pathlib import Path
from typing import Any

import msgspec

from integration.networking.directions import two_pods
from integration.networking.lab import Lab, example, with_ipv6
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

MESSAGE = "the controller of the mesh is out of reach"
PLUGIN = """#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}}';;
STATUS) [ -e {flag} ] || {{ echo '{{"cniVersion": "1.1.0", "code": 50, "msg": "{message}"}}'; exit 1; }};;
esac
"""
FRESH_SECONDS = 60.0
"""The server keeps an answer of plugins for ten seconds."""


def network_ready(stock: Lab) -> pb.RuntimeCondition:
    conditions = stock.served.cri.runtime.Status(pb.StatusRequest()).status.conditions
    return next(condition for condition in conditions if condition.type == "NetworkReady")


def cni_check(stock: Lab, sandbox_id: str) -> str:
    request = pb.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
    info: dict[str, Any] = msgspec.json.decode(stock.served.cri.runtime.PodSandboxStatus(request).info["info"])
    return str(info["cniCheck"])


def test_a_plugin_whose_status_fails_makes_the_node_not_ready(stock: Lab, tmp_path: Path) -> None:
    plugin = stock.dirs.cni_more_bin / "mesh"
    plugin.write_text(PLUGIN.format(flag=tmp_path / "up", message=MESSAGE))
    plugin.chmod(0o755)
    conflist = stock.dirs.cni_conf / "05-mesh.conflist"
    conflist.write_text('{"cniVersion": "1.1.0", "name": "mesh", "plugins": [{"type": "mesh"}]}')
    try:
        wait_until(lambda: f"{MESSAGE} (code 50)" in network_ready(stock).message)
        condition = network_ready(stock)
        assert (condition.status, condition.reason) == (False, "NetworkPluginNotReady")
        assert "network mesh" in condition.message

        (tmp_path / "up").touch()

        wait_until(lambda: network_ready(stock).status, FRESH_SECONDS)
    finally:
        conflist.unlink()
        plugin.unlink()
    wait_until(lambda: "network mesh" not in network_ready(stock).message)


def test_the_status_of_a_pod_reports_a_damaged_network(stock: Lab) -> None:
    stock.use(with_ipv6(example("10-bridge.conflist")))
    with two_pods(stock, families=(4, 6)) as pods:
        netns, address = pods.second.netns, pods.second.addresses[4]
        sandbox_id = netns.path.name.removeprefix("cri-")

        assert cni_check(stock, sandbox_id) == "ok"

        netns.run(f"ip address delete {address}/24 dev eth0")
        assert cni_check(stock, sandbox_id) == f"no interface of the pod has {address}"
        netns.run(f"ip address add {address}/24 dev eth0")
