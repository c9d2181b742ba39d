"""`make demo` on a fresh machine, and its cleanup."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from integration.node.isolation import Node

SECONDS = 300
MACHINE = """
set -e
mount --make-rprivate /
for directory in /run /opt /etc/docker /etc/cni /var/lib/docker; do
    mkdir -p $directory
    mount -t tmpfs tmpfs $directory
done
mkdir -p /opt/cni/bin /etc/cni/net.d
mount --bind {plugins} /opt/cni/bin
echo '{settings}' >/etc/docker/daemon.json
ip link set lo up
sysctl -qw net.ipv4.ip_forward=0
iptables -N OURS
iptables -A FORWARD -j OURS
state() {{
    for save in iptables-save ip6tables-save; do
        $save | sed 's/ \\[.*//' | grep -e '^-' -e '^:.* -$' -e '^:FORWARD' || true
    done
    nft list tables | grep pydockershim || true
    ip -o link
    sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding
    ls -R /etc/cni
}}
state >/opt/before
{python} -m integration.node host {python} -m integration.demo
state >/opt/after
diff /opt/before /opt/after
"""
"""Runs with separate network and mount namespaces, and checks that a chain of the machine stays."""


def test_the_demo_fetches_from_outside_and_leaves_the_machine_as_it_was(node: Node) -> None:
    settings = {"cgroup-parent": node.cgroup_parent, "exec-opts": ["native.cgroupdriver=cgroupfs"]}
    script = MACHINE.format(
        plugins=node.tools.root / "usr/lib/cni",
        settings=msgspec.json.encode(settings).decode(),
        python=sys.executable,
    )
    search = os.pathsep.join([*map(str, node.stable.path), os.environ["PATH"]])

    done = subprocess.run(
        ["unshare", "--mount", "--net", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env={**os.environ, "PATH": search},
        cwd=Path(__file__).parents[2],
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "hello from outside of the node" in done.stdout
