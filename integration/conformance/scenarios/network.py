"""Addresses, host ports, names and services."""

import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from integration.conformance.cluster import ADDRESS, DOMAIN
from integration.conformance.scenario import Case, container, eventually, job_pod, pod, scenario
from integration.node.daemon import Daemon

_SECONDS = 60.0
_ANSWER = "192.0.2.99"
_WEB = ("httpd", "-f", "-p", "8080", "-h", "/var/www")


def _page(address: str) -> bytes:
    try:
        with urllib.request.urlopen(f"http://{address}/", timeout=_SECONDS) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


@scenario()
def pods_reach_each_other(case: Case) -> None:
    """At the address in their status, which the node reaches too."""
    case.run(pod("web", container(*_WEB)))
    address = case.pod("web")["status"]["podIP"]
    assert eventually(lambda: _page(f"{address}:8080")) == b"it works\n"
    assert case.finish(job_pod("client", "wget", "-qO-", f"http://{address}:8080/")) == "it works\n"


@scenario()
def host_port_leads_to_a_pod(case: Case) -> None:
    """From the node's address and from another pod. The port is free again after the pod's deletion."""
    ports = [{"containerPort": 8080, "hostPort": 18080}]
    case.run(pod("web", container(*_WEB, ports=ports)))
    assert eventually(lambda: _page(f"{ADDRESS}:18080")) == b"it works\n"
    assert case.finish(job_pod("client", "wget", "-qO-", f"http://{ADDRESS}:18080/")) == "it works\n"
    case.kubectl("delete", "pod", "web")
    assert _page(f"{ADDRESS}:18080") == b""
    case.run(pod("again", container(*_WEB, ports=ports)))
    assert eventually(lambda: _page(f"{ADDRESS}:18080")) == b"it works\n"


@scenario()
def pod_of_the_host_network_has_the_nodes_address(case: Case) -> None:
    """The pod listens at that address."""
    case.run(pod("p", container("httpd", "-f", "-p", "18081", "-h", "/var/www"), hostNetwork=True))
    assert case.pod("p")["status"]["podIP"] == ADDRESS
    assert eventually(lambda: _page(f"{ADDRESS}:18081")) == b"it works\n"


@scenario()
def resolver_is_configured_as_the_pod_asks(case: Case) -> None:
    """From the cluster, from the pod's dnsConfig, and for the policy Default from the node."""
    case.run(pod("cluster"))
    text = case.exec("cluster", "cat", "/etc/resolv.conf")
    assert f"nameserver {ADDRESS}\n" in text
    assert f"search {case.namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}" in text
    assert "ndots:5" in text
    own = {"nameservers": ["192.0.2.53"], "searches": ["own.test"], "options": [{"name": "ndots", "value": "1"}]}
    case.run(pod("own", dnsPolicy="None", dnsConfig=own))
    expected = {"nameserver 192.0.2.53", "search own.test", "options ndots:1"}
    assert expected <= set(case.exec("own", "cat", "/etc/resolv.conf").splitlines())
    case.run(pod("default", dnsPolicy="Default"))
    assert "search node.test" in case.exec("default", "cat", "/etc/resolv.conf")


@scenario()
def names_are_resolved(case: Case) -> None:
    """By a name server at the address that the kubelet gives to pods."""
    with _name_server(f"web.{case.namespace}.svc.{DOMAIN}"):
        case.run(pod("p"))
        text = case.exec("p", "nslookup", "-type=a", f"web.{case.namespace}.svc.{DOMAIN}")
    assert _ANSWER in text, text


@scenario()
def names_of_a_pod_are_in_its_files(case: Case) -> None:
    """Host name, domain and aliases."""
    aliases = [{"ip": "192.0.2.7", "hostnames": ["seven.test"]}]
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "sub"}}
    case.kubectl.apply({**service, "spec": {"clusterIP": "None", "selector": {"a": "b"}, "ports": [{"port": 80}]}})
    case.run(pod("p", hostname="first", subdomain="sub", hostAliases=aliases))
    full = f"first.sub.{case.namespace}.svc.{DOMAIN}"
    hosts = case.exec("p", "cat", "/etc/hosts")
    address = case.pod("p")["status"]["podIP"]
    assert f"{address}\t{full}\tfirst" in hosts, hosts
    assert "192.0.2.7\tseven.test" in hosts, hosts
    assert case.exec("p", "hostname") == "first\n"
    assert case.exec("p", "hostname", "-f") == f"{full}\n"


@scenario()
def pod_reaches_the_api_server_and_has_a_token_for_it(case: Case) -> None:
    """Over the pod network. busybox has no TLS; the API server's refusal of a plain request proves the connection."""
    case.run(pod("p"))
    done = case.kubectl.try_to("exec", "p", "--", "wget", "-S", "-O-", f"http://{ADDRESS}:6443/version")
    assert "400 Bad Request" in done.err, done
    token = case.exec("p", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
    username = case.kubectl("auth", "whoami", f"--token={token}", "-o", "jsonpath={.status.userInfo.username}")
    assert username == f"system:serviceaccount:{case.namespace}:default"


@scenario(alone=True, needs=["kube-proxy"])
def service_leads_to_its_pods(case: Case) -> None:
    """From the node and from a pod, through the rules of kube-proxy."""
    daemon = Daemon(
        [
            case.cluster.binaries["kube-proxy"],
            f"--kubeconfig={case.kubectl.kubeconfig}",
            "--hostname-override=node",
            "--proxy-mode=iptables",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
        log=case.cluster.home / "kube-proxy.log",
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    daemon.spawn()
    try:
        web = pod("web", container(*_WEB), metadata={"labels": {"app": "web"}})
        case.run(web)
        spec = {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
        case.kubectl.apply({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
        address = case.get("services", "web")["spec"]["clusterIP"]
        assert eventually(lambda: _page(address), daemon.log_tail) == b"it works\n"
        assert case.finish(job_pod("client", "wget", "-qO-", f"http://{address}/")) == "it works\n"
    finally:
        daemon.stop(timeout=_SECONDS)


@contextmanager
def _name_server(name: str) -> Iterator[None]:
    """Answer DNS queries for a name at the node's address while the block runs."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((ADDRESS, 53))
        thread = threading.Thread(target=_serve, args=(server, name), name="names", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
                last.sendto(b"", (ADDRESS, 53))
            thread.join()


def _serve(server: socket.socket, name: str) -> None:
    """Answer until an empty datagram comes."""
    wanted = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\0"
    while True:
        question, peer = server.recvfrom(512)
        if not question:
            return
        asked = question[12:]
        known = asked.lower().startswith(wanted)
        head = (
            question[:2]
            + (b"\x85\x80" if known else b"\x85\x83")
            + b"\0\1"
            + (b"\0\1" if known else b"\0\0")
            + b"\0\0\0\0"
        )
        record = b"\xc0\x0c\0\1\0\1\0\0\0\x05\0\4" + socket.inet_aton(_ANSWER) if known else b""
        end = 12 + asked.index(b"\0") + 5
        server.sendto(head + question[12:end] + record, peer)
