"""Rules for the configuration of a pod sandbox."""

import re

from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import check_path_length
from shim.cni.arguments import host_address
from shim.cri.validate import rules
from shim.cri.validate.selinux import selinux
from shim.domain.errors import InvalidArgument

MAX_HOSTNAME = 64
"""Limit of the kernel (`HOST_NAME_MAX`)."""

_HOSTNAME = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]*[a-zA-Z0-9])?\Z")


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
    """Check where the logs of a pod go; empty for a pod without logs."""
    if path:
        check_path_length(path, field=field)
        rules.absolute(path, field=field)
        rules.no_parent(path, field=field)


def _hostname(hostname: str, *, field: str) -> None:
    if len(hostname) > MAX_HOSTNAME:
        raise InvalidArgument(f"{field} has {len(hostname)} characters, at most {MAX_HOSTNAME} are allowed")
    if hostname and not _HOSTNAME.match(hostname):
        raise InvalidArgument(
            f"{field} {hostname!r} may hold only letters, digits, '_', '.' and '-', and begins and ends with one"
            " of the first two"
        )


def _dns(dns: pb.DNSConfig, *, field: str) -> None:
    # They become words of lines in resolv.conf: white space would make more words, or more lines, of them.
    for name in ("servers", "searches", "options"):
        for index, word in enumerate(getattr(dns, name)):
            if len(word.split()) != 1 or word != word.strip():
                raise InvalidArgument(f"{field}.{name}[{index}] {word!r} is not one word")


def _port_mappings(config: pb.PodSandboxConfig, *, field: str) -> None:
    # With the network of the host nothing is mapped, and two containers may well name the same port.
    on_host = config.linux.security_context.namespace_options.network == pb.NODE
    taken: dict[tuple[object, ...], int] = {}
    for index, mapping in enumerate(config.port_mappings):
        at = f"{field}[{index}]"
        rules.between(mapping.container_port, least=1, most=rules.MAX_PORT, field=f"{at}.container_port")
        rules.between(mapping.host_port, least=0, most=rules.MAX_PORT, field=f"{at}.host_port")
        key = (mapping.protocol, mapping.host_port, _host_ip(mapping.host_ip, field=f"{at}.host_ip"))
        if not mapping.host_port or on_host or taken.setdefault(key, index) == index:
            continue
        if not _says_the_same(mapping, config.port_mappings[taken[key]]):
            raise InvalidArgument(f"{at}.host_port {mapping.host_port} is the same as that of {field}[{taken[key]}]")


def _says_the_same(mapping: pb.PortMapping, other: pb.PortMapping) -> bool:
    """Return whether two mappings of a host port are the same in two spellings, which the API server accepts."""
    return mapping.container_port == other.container_port and mapping.host_ip != other.host_ip


def _host_ip(text: str, *, field: str) -> str:
    try:
        return str(host_address(text))
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
