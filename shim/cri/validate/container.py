"""Rules for the configuration of a container."""

from shim.api.v1 import api_pb2 as pb
from shim.base.atomic_files import check_path_length
from shim.cri.validate import rules
from shim.cri.validate.limits import resources
from shim.cri.validate.mounts import cdi_devices, container_mounts, host_devices
from shim.cri.validate.selinux import selinux
from shim.domain.errors import InvalidArgument
from shim.domain.names import POD, check_name_part


def container_config(config: pb.ContainerConfig, *, field: str) -> None:
    """Check the configuration of a new container."""
    rules.required(config, "metadata", field=field)
    _name(config.metadata.name, field=f"{field}.metadata.name")
    rules.image_spec(config, field=field)
    _environment(config, field=f"{field}.envs")
    if config.working_dir:
        rules.absolute(config.working_dir, field=f"{field}.working_dir")
    _log_path(config.log_path, field=f"{field}.log_path")
    container_mounts(config, field=f"{field}.mounts")
    host_devices(config, field=f"{field}.devices")
    cdi_devices(config, field=f"{field}.CDI_devices")
    rules.labels_and_annotations(config, field=field)
    resources(config.linux.resources, field=f"{field}.linux.resources")
    _security(config.linux.security_context, field=f"{field}.linux.security_context")
    rules.no_windows(config.windows, field=f"{field}.windows")


def _name(name: str, *, field: str) -> None:
    check_name_part(name, field=field)
    if name == POD:
        raise InvalidArgument(f"{field} {name!r} is the name of pause containers")


def _environment(config: pb.ContainerConfig, *, field: str) -> None:
    for index, pair in enumerate(config.envs):
        # The value may be a secret, so messages never show it.
        if not pair.key or "=" in pair.key:
            raise InvalidArgument(f"{field}[{index}].key {pair.key!r} is not the name of a variable")
        if b"\0" in pair.value:
            raise InvalidArgument(f"{field}[{index}].value of {pair.key!r} holds a NUL")
    variables = (part for pair in config.envs for part in (pair.key, pair.value))
    words = f"{field.removesuffix('.envs')}.command, args and envs"
    rules.process_size(config.command, config.args, variables, field=words)


def _log_path(path: str, *, field: str) -> None:
    check_path_length(path, field=field)
    # The CRI defines it as relative to the pod's log directory, and it must not leave that directory.
    if path.startswith("/"):
        raise InvalidArgument(f"{field} {path!r} is not relative to the log directory of the pod")
    rules.no_parent(path, field=field)


def _security(context: pb.LinuxContainerSecurityContext, *, field: str) -> None:
    rules.ids(context, field=field)
    has_user = context.HasField("run_as_user")
    if has_user and context.run_as_username:
        raise InvalidArgument(f"{field}.run_as_username must not be given together with run_as_user")
    if context.HasField("run_as_group") and not has_user and not context.run_as_username:
        raise InvalidArgument(f"{field}.run_as_group needs run_as_user or run_as_username")
    if ":" in context.run_as_username:
        # Docker would read the text after the colon as a group.
        raise InvalidArgument(f"{field}.run_as_username {context.run_as_username!r} must not hold ':'")
    selinux(context.selinux_options, field=f"{field}.selinux_options")
    rules.namespaces(
        context.namespace_options,
        pid=(pb.POD, pb.CONTAINER, pb.NODE, pb.TARGET),
        field=f"{field}.namespace_options",
    )
