"""daemon.json files of administrators: options that reach containers, and many that do not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "tests/data/dockerd-options.tsv"
OTHER_RUNTIME = "other"
_ADDITIONS = {"labels": "a,log", "labels-regex": ".*", "env": "log", "env-regex": "^[a-z]", "tag": "{{.No}}"}
_NON_BLOCKING = {"mode": "non-blocking", "max-buffer-size": "4m"}
_CACHE = {"cache-disabled": "false", "cache-max-size": "1m", "cache-max-file": "2", "cache-compress": "true"}

DAEMONS: Mapping[str, Mapping[str, Any]] = {
    "many": {
        "bridge": "none",
        "cdi-spec-dirs": ["/nowhere"],
        "cgroup-parent": "",
        "containerd-namespace": "others",
        "containerd-plugins-namespace": "plugins.others",
        "default-cgroupns-mode": "private",
        "default-ipc-mode": "private",
        "default-network-opts": {"bridge": {"com.docker.network.driver.mtu": "1300"}},
        "default-runtime": OTHER_RUNTIME,
        "default-shm-size": "8M",
        "default-ulimits": {"nofile": {"Name": "nofile", "Soft": 1024, "Hard": 2048}},
        "dns": ["192.0.2.1"],
        "dns-opts": ["ndots:9"],
        "dns-search": ["others.test"],
        "experimental": True,
        "features": {"buildkit": False, "cdi": False},
        "host-gateway-ips": ["192.0.2.2"],
        "http-proxy": "http://192.0.2.3:1",
        "https-proxy": "http://192.0.2.3:1",
        "init": True,
        "init-path": "/nowhere/init",
        "insecure-registries": ["192.0.2.4:5000"],
        "ip-forward": False,
        "ip6tables": False,
        "iptables": False,
        "labels": ["of=the-daemon"],
        "live-restore": True,
        "log-driver": "json-file",
        "log-format": "json",
        "log-level": "warn",
        "log-opts": {
            "max-size": "10k",
            "max-file": "5",
            "compress": "true",
            **_NON_BLOCKING,
            **_ADDITIONS,
            **_CACHE,
        },
        "max-concurrent-downloads": 1,
        "max-download-attempts": 1,
        "metrics-addr": "127.0.0.1:0",
        "no-new-privileges": True,
        "no-proxy": "others.test",
        "node-generic-resources": ["gpu=1"],
        "raw-logs": True,
        "registry-mirrors": ["http://127.0.0.1:1"],
        "runtimes": {},
        "selinux-enabled": True,
        "shutdown-timeout": 1,
        "userland-proxy": False,
    },
    "opposite": {
        "allow-direct-routing": True,
        "debug": True,
        "default-cgroupns-mode": "host",
        "default-ipc-mode": "shareable",
        "default-shm-size": "1G",
        "icc": False,
        "ip": "127.0.0.1",
        "ip-forward-no-drop": True,
        "ip-masq": False,
        "log-driver": "json-file",
        "log-opts": {**_ADDITIONS, "mode": "non-blocking", "env-regex": "("},
        "mtu": 1400,
    },
    "local": {"bridge": "none", "log-driver": "local", "log-opts": {**_NON_BLOCKING, **_CACHE, "max-size": "10k"}},
    "none": {"bridge": "none", "log-driver": "none"},
    "syslog": {
        "bridge": "none",
        "log-driver": "syslog",
        "log-opts": {"syslog-address": "udp://127.0.0.1:1", "tag": "{{.No}}", **_NON_BLOCKING, **_CACHE},
    },
    "firewall": {"firewall-backend": "nftables"},
    "journald": {"bridge": "none", "log-driver": "journald", "log-opts": {**_ADDITIONS, **_CACHE}},
}
DEFAULT_DAEMONS = ("many", "opposite")


def options() -> list[tuple[str, str, list[str]]]:
    """Return the key of each option in daemon.json, its flag, and the Engines that know it."""
    rows = [line.split("\t") for line in DATA.read_text().split("\n") if line and not line.startswith("#")]
    return [(key, flag, engines) for key, flag, *engines in rows]


def settings_for(settings: Mapping[str, Any], *, engine: str, runtime: Path, parent: str) -> dict[str, Any]:
    """Return the options that an engine knows, with the paths of this machine."""
    release = engine.partition("-")[0]
    known = {key for key, _flag, engines in options() if release in engines}
    of_machine = {"runtimes": {OTHER_RUNTIME: {"path": str(runtime)}}, "cgroup-parent": parent}
    return {key: of_machine.get(key, value) for key, value in settings.items() if key in known}
