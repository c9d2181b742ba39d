"""Rules for the configuration of a pod sandbox."""

from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import check_path_length
from shim.cni.arguments import host_address
from shim.cri.validate import rules
from shim.cri.validate.selinux import selinux
from shim.domain.errors import InvalidArgument

MAX_HOSTNAME = 64
"""Bytes; the kernel's limit (`HOST_NAME_MAX`)."""


def sandbox_config(config: pb.PodSandboxConfig, *, field: str) -> None:
    """Check the configuration of a new pod sandbox."""
    rules.pod_metadata(config, field=field)
    _hostname(config.hostname, field=f"{field}.hostname")
    log_directory(config.log_directory, field=f"{field}.log_directory")
    _dns(config.dns_config, field=f"{field}.dns_config")
    _port_mappings(config, field=f"{field}.port_mappings")
    rules.labels_and_annotations(config, field=field)
    _linux(config.linux, field=f"{field}.linux")
    rules.no_windows(config.windows, field=f"{field}.windows")


def log_directory(path: str, *, field: str) -> None:
    """Check the log directory of a pod; empty for a pod without logs."""
    if path:
        check_path_length(path, field=field)
        rules.absolute(path, field=field)
        rules.no_parent(path, field=field)


def _hostname(hostname: str, *, field: str) -> None:
    size = len(hostname.encode())
    if size > MAX_HOSTNAME:
        raise InvalidArgument(f"{field} has {size} bytes, at most {MAX_HOSTNAME} are allowed")
    if hostname:
        # Docker writes it into /etc/hosts. With setHostnameAsFQDN it ends with the kubelet's clusterDomain, which may
        # be empty or end with a dot, so nothing more is checked.
        rules.word(hostname, field=field)


def _dns(dns: pb.DNSConfig, *, field: str) -> None:
    # The values become lines of resolv.conf.
    for name in ("servers", "searches"):
        for index, text in enumerate(getattr(dns, name)):
            rules.word(text, field=f"{field}.{name}[{index}]")
    for index, option in enumerate(dns.options):
        # The API server accepts any text as name and value of an option, so an option may hold several words.
        if "\n" in option:
            raise InvalidArgument(f"{field}.options[{index}] {option!r} has more than one line")


def _port_mappings(config: pb.PodSandboxConfig, *, field: str) -> None:
    # On the host network no ports are mapped, and two containers may name the same port.
    on_host = config.linux.security_context.namespace_options.network == pb.NODE
    taken: dict[tuple[pb.Protocol, int, str], int] = {}
    for index, mapping in enumerate(config.port_mappings):
        at = f"{field}[{index}]"
        rules.between(mapping.container_port, least=1, most=rules.MAX_PORT, field=f"{at}.container_port")
        rules.between(mapping.host_port, least=0, most=rules.MAX_PORT, field=f"{at}.host_port")
        if not mapping.host_port or on_host:
            continue
        _host_ip(mapping.host_ip, field=f"{at}.host_ip")
        # Addresses are compared as text, like in the API server; `shim.cni.arguments` handles equivalent spellings.
        first = taken.setdefault((mapping.protocol, mapping.host_port, mapping.host_ip), index)
        if first != index:
            raise InvalidArgument(f"{at}.host_port {mapping.host_port} is already the host_port of {field}[{first}]")


def _host_ip(text: str, *, field: str) -> None:
    try:
        host_address(text)
    except ValueError:
        raise InvalidArgument(f"{field} {text!r} is not an IP address") from None


def _linux(linux: pb.LinuxPodSandboxConfig, *, field: str) -> None:
    rules.no_parent(linux.cgroup_parent, field=f"{field}.cgroup_parent")
    for key in linux.sysctls:
        if not key or "=" in key or key.split() != [key]:
            raise InvalidArgument(f"{field}.sysctls: {key!r} is not the name of a sysctl")
    _security(linux.security_context, field=f"{field}.security_context")


def _security(context: pb.LinuxSandboxSecurityContext, *, field: str) -> None:
    rules.ids(context, field=field)
    if context.HasField("run_as_group") and not context.HasField("run_as_user"):
        raise InvalidArgument(f"{field}.run_as_group needs run_as_user")
    selinux(context.selinux_options, field=f"{field}.selinux_options")
    rules.namespaces(context.namespace_options, pid=(pb.POD, pb.CONTAINER, pb.NODE), field=f"{field}.namespace_options")
