"""What keeps packets of pods from being forwarded: settings of the kernel, iptables and nftables.

Advice begins with a command that mends the running node; how to keep that stands behind a semicolon.
"""

import ipaddress
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from shim.base.proc import lines, to_text
from shim.base.spawn import run_bounded
from shim.cni.cache import own_attachments
from shim.cni.conf import NetworkConfig, choose, read_directory
from shim.cni.host_ports import admin_chain
from shim.config.model import Config
from shim.doctor.findings import Finding
from shim.doctor.pod_ranges import bridge, is_on_nodes_network, pod_ranges
from shim.domain.errors import ShimError
from shim.sandbox.network import docker_socket

ROUTED = ("bridge", "ptp")
"""Plugins of the CNI project whose pods need the node to forward, and which leave filters to others."""

KEEP_SYSCTL = "keep it in /etc/sysctl.d"

_COMMAND_SECONDS = 2.0
_NAMES = {4: "ip_tables_names", 6: "ip6_tables_names"}
_STRICT = 1
"""Value of rp_filter that drops a packet if its answer would leave by another interface."""
_NO_UPLINKS = ("lo", "docker", "br-", "veth", "cni", "cali", "flannel", "kube-", "virbr", "tun")
_REFUSING_TARGETS = ("DROP", "REJECT")


@dataclass(frozen=True, slots=True)
class _Pods:
    """Properties of the pods of the network in use."""

    file: Path
    network: NetworkConfig
    ranges: tuple[str, ...]

    @property
    def families(self) -> tuple[int, ...]:
        versions = {ipaddress.ip_network(text, strict=False).version for text in self.ranges}
        return tuple(sorted(versions)) or (4,)

    def ranges_of(self, family: int) -> list[str]:
        return [text for text in self.ranges if ipaddress.ip_network(text, strict=False).version == family]

    @property
    def is_forwarded(self) -> bool:
        return not is_on_nodes_network(self.network)

    @property
    def is_routed(self) -> bool:
        return any(kind in ROUTED for kind in self.network.plugin_types)

    @property
    def link(self) -> str:
        """Name of the bridge; empty for networks without."""
        return bridge(self.network)

    @property
    def has_firewall(self) -> bool:
        return "firewall" in self.network.plugin_types


def check_forwarding(
    config: Config, *, sysctls: Path = Path("/proc/sys"), proc: Path = Path("/proc")
) -> Iterator[Finding]:
    """Return what keeps pods of the network in force from being reached; nothing where there is no network."""
    if config.network_plugin == "none":
        return
    network = choose(read_directory(config.cni_conf_dir), bin_dirs=config.cni_bin_dir).network
    if network is None:
        return
    pods = _Pods(config.cni_conf_dir / network.file, network, pod_ranges(network, config))
    if not pods.is_forwarded:
        text = f"pods of network {network.name} are on the node's own network, and not forwarded by it"
        yield Finding("ok", "pod traffic", text)
        return
    yield from _kernel(pods, sysctls)
    if pods.is_routed:
        yield from _filters(pods, proc)
    else:
        yield Finding("ok", "forward chain", f"left to the plugins of network {network.name}")
    if network.declares("portMappings"):
        yield from _host_ports(pods, config, sysctls=sysctls, proc=proc)


# --- settings of the kernel -------------------------------------------------------------------------------


def _kernel(pods: _Pods, sysctls: Path) -> Iterator[Finding]:
    if 6 in pods.families:
        yield _check_switch(
            sysctls, "net.ipv6.conf.all.forwarding", subject="ipv6 forward", otherwise="IPv6 stays on the node"
        )
    if not pods.link:
        return
    names = {4: "net.bridge.bridge-nf-call-iptables", 6: "net.bridge.bridge-nf-call-ip6tables"}
    if _sysctl(sysctls, names[4]) is None:
        text = "is not loaded: pods of one node do not reach each other by a Service"
        advice = "modprobe br_netfilter; keep it in /etc/modules-load.d"
        yield Finding("warn", "br_netfilter", text, advice)
        return
    yield Finding("ok", "br_netfilter", "is loaded")
    for family in pods.families:
        why = "pods of one node do not reach each other by a Service"
        yield _check_switch(sysctls, names[family], subject="bridge rules", otherwise=why)


def _check_switch(sysctls: Path, name: str, *, subject: str, otherwise: str) -> Finding:
    value = _sysctl(sysctls, name)
    if value not in (0, None):
        return Finding("ok", subject, f"{name} is {value}")
    text = f"{name} is {'absent' if value is None else value}: {otherwise}"
    return Finding("warn", subject, text, f"sysctl -w {name}=1; {KEEP_SYSCTL}")


def _sysctl(sysctls: Path, name: str) -> int | None:
    """Return a setting of the kernel; None where there is none of this name."""
    return _number(sysctls / name.replace(".", "/"))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_bytes())
    except (OSError, ValueError):
        return None


# --- filters ----------------------------------------------------------------------------------------------


def _filters(pods: _Pods, proc: Path) -> Iterator[Finding]:
    found: list[Finding] = []
    for family in pods.families:
        found += _iptables(pods, family, proc)
    found += _nftables(pods)
    yield from found
    if not found:
        yield Finding("ok", "forward chain", _why_forwarded(pods))


def _why_forwarded(pods: _Pods) -> str:
    if pods.has_firewall:
        accepts = (
            "what pods send, and connections to host ports" if admin_chain(pods.network.conflist) else "what pods send"
        )
        return f"plugin firewall accepts {accepts}, or nothing is dropped"
    return "nothing drops what pods send"


def _iptables(pods: _Pods, family: int, proc: Path) -> Iterator[Finding]:
    """Return where the chains of iptables drop what pods send, in both kinds of tables."""
    command = "ip6tables" if family == 6 else "iptables"
    plugins_use = "legacy" if "legacy" in _output(command, "--version") else "nft"
    for kind in _kinds(family, proc):
        tool = command if kind == plugins_use else f"{command}-{kind}"
        rules = _output(tool, "--wait", "--list-rules").split("\n")
        refusal = _find_refusal(rules)
        if not refusal or _accepts(rules, pods, family) or (pods.has_firewall and kind == plugins_use):
            continue
        mends = f"{tool} {refusal.removes}"
        if pods.has_firewall:
            text = f"{refusal.what} in iptables-{kind}, while plugin firewall writes to iptables-{plugins_use}"
            yield Finding("warn", "forward chain", text, f"{mends}; have all programs use the same iptables")
        else:
            text = f"{refusal.what} ({tool}): pods reach neither each other nor the world"
            advice = f'{mends}; or for good, add {{"type": "firewall"}} to the plugins of {pods.file}'
            yield Finding("warn", "forward chain", text, advice)


def _kinds(family: int, proc: Path) -> Iterator[str]:
    """Yield the kinds of tables that exist. The tool for legacy tables would create them, so it runs only then."""
    yield "nft"
    try:
        names = lines((proc / "thread-self/net" / _NAMES[family]).read_bytes())
    except OSError:
        return
    if b"filter" in names:
        yield "legacy"


@dataclass(frozen=True, slots=True)
class _Refusal:
    """What refuses forwarded packets, and the words for iptables that end it."""

    what: str
    removes: str


def _find_refusal(rules: Sequence[str]) -> _Refusal | None:
    if "-P FORWARD DROP" in rules:
        return _Refusal("the policy of FORWARD is DROP", "-P FORWARD ACCEPT")
    for rule in rules:
        words = rule.split(" ")
        if words[:3] == ["-A", "FORWARD", "-j"] and words[3] in _REFUSING_TARGETS:
            return _Refusal(f"FORWARD ends with {words[3]}", " ".join(["-D", *words[1:]]))
    return None


def _accepts(rules: Sequence[str], pods: _Pods, family: int) -> bool:
    """Whether any rule accepts all that pods of the network send."""
    return any(_accepts_pods(rule.split(" "), pods, family) for rule in rules if rule.endswith("-j ACCEPT"))


def _accepts_pods(words: Sequence[str], pods: _Pods, family: int) -> bool:
    matches = words[2:-2]
    if not matches:
        return words[1] == "FORWARD"
    if len(matches) != 2:
        return False
    key, value = matches
    if key == "-i":
        return bool(pods.link) and value == pods.link
    return key == "-s" and bool(ranges := pods.ranges_of(family)) and all(_is_within(text, value) for text in ranges)


def _is_within(inner: str, outer: str) -> bool:
    one, other = (ipaddress.ip_network(text, strict=False) for text in (inner, outer))
    return one.version == other.version and one.subnet_of(other)  # type: ignore[arg-type]  # of one version


def _nftables(pods: _Pods) -> Iterator[Finding]:
    """Return chains of nftables that drop forwarded packets, even if other chains accept them."""
    for chain in _forward_chains():
        words = f"{chain['family']} {chain['table']} {chain['name']}"
        if _is_of_iptables(chain) or chain.get("policy") != "drop" or _lets_pass(words, pods):
            continue
        text = f"the policy of chain {words} is drop (nftables), whatever other chains accept"
        advice = f"nft '{_accept_commands(words, pods)}'; keep it in /etc/nftables.conf"
        yield Finding("warn", "forward chain", text, advice)


def _forward_chains() -> list[dict[str, Any]]:
    try:
        listed = msgspec.json.decode(_output("nft", "--json", "list", "chains") or "{}")
        items = listed.get("nftables", [])
        return [item["chain"] for item in items if item.get("chain", {}).get("hook") == "forward"]
    except (ValueError, AttributeError, TypeError):
        return []


def _is_of_iptables(chain: dict[str, Any]) -> bool:
    return (chain["family"] in ("ip", "ip6"), chain["table"], chain["name"]) == (True, "filter", "FORWARD")


def _lets_pass(words: str, pods: _Pods) -> bool:
    rules = [line.strip("\t ") for line in _output("nft", "list", "chain", *words.split(" ")).split("\n")]
    accepting = [rule for rule in rules if rule.endswith("accept") and "policy" not in rule]
    return all(any(_is_for(rule, pods, family) for rule in accepting) for family in pods.families)


def _is_for(rule: str, pods: _Pods, family: int) -> bool:
    if rule == "accept" or (pods.link and f'iifname "{pods.link}"' in rule):
        return True
    ranges = pods.ranges_of(family)
    return bool(ranges) and all(f"saddr {text} " in rule for text in ranges)


def _accept_commands(words: str, pods: _Pods) -> str:
    """Return commands for nft after which a chain accepts what pods send and are sent."""
    kinds = {4: "ip", 6: "ip6"}
    rules = [
        f"insert rule {words} {kinds[family]} {end} {text} accept"
        for family in pods.families
        for text in pods.ranges_of(family)
        for end in ("saddr", "daddr")
    ]
    return "; ".join(rules) or f"chain {words} {{ policy accept ; }}"


# --- host ports -------------------------------------------------------------------------------------------


def _host_ports(pods: _Pods, config: Config, *, sysctls: Path, proc: Path) -> Iterator[Finding]:
    found = [*_hairpin(pods), *_strict_uplinks(sysctls, proc), *_lost_rules(pods, config)]
    yield from found or [Finding("ok", "host ports", "nothing keeps connections from them")]


def _lost_rules(pods: _Pods, config: Config) -> Iterator[Finding]:
    """Return the pods whose host ports are in no rule any more, as after `nft flush ruleset`."""
    if "portmap" not in pods.network.plugin_types:
        return  # other plugins may do without rules
    rules = _output("iptables", "--wait", "--table", "nat", "--list-rules")
    if not rules:
        return  # not root
    rules += _output("nft", "list", "ruleset")
    for each in own_attachments(config.cni_cache_dir, docker=docker_socket(config), excluding=()):
        ports = [str(mapping["hostPort"]) for mapping in each.capabilities.get("portMappings", ())]
        lost = [port for port in ports if not re.search(rf"\b{port}\b", rules)]
        if lost and each.network == pods.network.name:
            names = dict(each.args)
            namespace, pod = names.get("K8S_POD_NAMESPACE", ""), names.get("K8S_POD_NAME", "")
            text = f"no rule for port {', '.join(lost)} of pod {namespace}/{pod}: somebody has removed it"
            advice = f"kubectl delete pod --namespace {namespace} {pod}; a new pod gets new rules"
            yield Finding("warn", "host ports", text, advice)


def _hairpin(pods: _Pods) -> Iterator[Finding]:
    for plugin in pods.network.conflist["plugins"]:
        if plugin["type"] == "bridge" and not plugin.get("hairpinMode"):
            text = "plugin bridge has no hairpinMode: a pod does not reach its own host port, nor itself by a Service"
            yield Finding("warn", "host ports", text, f'add "hairpinMode": true to plugin bridge in {pods.file}')


def _strict_uplinks(sysctls: Path, proc: Path) -> Iterator[Finding]:
    """Return interfaces where remote connections are dropped, because answers take another interface."""
    routes = _routes(proc)
    defaults = {link for link, destination in routes if destination == "00000000"}
    if not defaults:
        return
    for link in sorted({link for link, _ in routes} - defaults):
        if link.startswith(_NO_UPLINKS):
            continue
        if max(_rp_filter(sysctls, "all"), _rp_filter(sysctls, link)) == _STRICT:
            text = f"strict on {link}, which has no default route: connections from other networks are dropped there"
            advice = f"sysctl -w net/ipv4/conf/{link}/rp_filter=2; {KEEP_SYSCTL}"
            yield Finding("warn", "rp_filter", text, advice)


def _rp_filter(sysctls: Path, link: str) -> int:
    # By its path: the name of an interface may have dots.
    return _number(sysctls / "net/ipv4/conf" / link / "rp_filter") or 0


def _routes(proc: Path) -> list[tuple[str, str]]:
    """Return interface and destination, in hexadecimal digits, of each route of IPv4."""
    try:
        table = lines((proc / "thread-self/net/route").read_bytes())[1:]
    except OSError:
        return []
    return [(to_text(words[0]), to_text(words[1])) for words in map(bytes.split, table) if len(words) > 1]


def _output(command: str, *arguments: str) -> str:
    """Return the output of a command; empty if it is missing or fails."""
    program = shutil.which(command)
    if program is None:
        return ""
    try:
        outcome = run_bounded(
            Path(program),
            arguments=arguments,
            environment=os.environ,
            stdin=b"",
            timeout=_COMMAND_SECONDS,
            what=f"run {command}",
        )
    except (ShimError, OSError):
        return ""
    return outcome.stdout.decode(errors="replace")
