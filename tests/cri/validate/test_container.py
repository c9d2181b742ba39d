import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate.rules import MAX_LABEL_BYTES
from shim.domain.errors import InvalidArgument
from shim.domain.passwd import MAX_ID
from tests.cri.validate.containers import Change, all_of, check


def context(request: pb.CreateContainerRequest) -> pb.LinuxContainerSecurityContext:
    return request.config.linux.security_context


GOOD: dict[str, Change] = {
    "as-sent": lambda _: None,
    "least": lambda r: r.config.CopyFrom(
        pb.ContainerConfig(metadata=r.config.metadata, image=pb.ImageSpec(image="busybox"))
    ),
    "name-of-a-user": all_of(
        lambda r: context(r).ClearField("run_as_user"),
        lambda r: setattr(context(r), "run_as_username", "www-data"),
    ),
    "dots-in-a-log-name": lambda r: setattr(r.config, "log_path", "app/..3.log"),
    "longest-log-path": lambda r: setattr(r.config, "log_path", "é/" * 1280 + "x" * 255),
    "no-log": lambda r: r.config.ClearField("log_path"),
    "nothing-for-windows": lambda r: r.config.windows.SetInParent(),
}


@pytest.mark.parametrize("change", GOOD.values(), ids=GOOD)
def test_valid_containers_pass(change: Change) -> None:
    check(change)


BAD: dict[str, tuple[Change, str]] = {
    "no-sandbox": (lambda r: r.ClearField("pod_sandbox_id"), "pod_sandbox_id is empty"),
    "no-config": (lambda r: r.ClearField("config"), "config is missing"),
    "no-metadata": (lambda r: r.config.ClearField("metadata"), "config.metadata is missing"),
    "no-name": (lambda r: r.config.metadata.ClearField("name"), "config.metadata.name is empty"),
    "long-name": (
        lambda r: setattr(r.config.metadata, "name", "x" * 254),
        "config.metadata.name has 254 characters",
    ),
    "name-of-pause": (
        lambda r: setattr(r.config.metadata, "name", "POD"),
        "config.metadata.name 'POD' is the name of pause containers",
    ),
    "no-sandbox-config": (lambda r: r.ClearField("sandbox_config"), "sandbox_config is missing"),
    "no-pod-metadata": (
        lambda r: r.sandbox_config.ClearField("metadata"),
        "sandbox_config.metadata is missing",
    ),
    "log-directory-up": (
        lambda r: setattr(r.sandbox_config, "log_directory", "/var/.."),
        "sandbox_config.log_directory '/var/..' must not hold '..'",
    ),
    "no-image": (lambda r: r.config.ClearField("image"), "config.image is missing"),
    "empty-image": (lambda r: r.config.image.ClearField("image"), "config.image.image is empty"),
    "env-no-key": (lambda r: r.config.envs.add(value=b"x"), "config.envs[2].key '' is not the name"),
    "env-equals": (lambda r: r.config.envs.add(key="A=B"), "config.envs[2].key 'A=B' is not the name"),
    "env-nul-key": (lambda r: r.config.envs.add(key="A\0"), "config.envs[2].key holds a NUL"),
    "env-nul-value": (
        lambda r: r.config.envs.add(key="A", value=b"hunter2\0"),
        "config.envs[2].value of 'A' holds a NUL",
    ),
    "process-too-large": (
        lambda r: r.config.envs.add(key="A", value=b"x" * (2 << 20)),
        "config.command, args and envs have 2097",
    ),
    "nul-in-command": (lambda r: r.config.command.append("\0"), "config.command[2] holds a NUL"),
    "working-dir": (
        lambda r: setattr(r.config, "working_dir", "srv"),
        "config.working_dir 'srv' is not an absolute path",
    ),
    "log-path-up": (
        lambda r: setattr(r.config, "log_path", "../../etc/passwd"),
        "config.log_path '../../etc/passwd' must not hold '..'",
    ),
    "log-path-absolute": (
        lambda r: setattr(r.config, "log_path", "/etc/passwd"),
        "config.log_path '/etc/passwd' is not relative",
    ),
    "log-path-long": (
        lambda r: setattr(r.config, "log_path", "é/" * 1365 + "3"),
        "config.log_path has 4096 bytes, at most 4095 are allowed",
    ),
    "log-name-long": (
        lambda r: setattr(r.config, "log_path", "app/" + "x" * 256),
        "config.log_path holds a name of 256 bytes, at most 255 are allowed",
    ),
    "log-directory-long": (
        lambda r: setattr(r.sandbox_config, "log_directory", "/a" * 75_000),
        "sandbox_config.log_directory has 150000 bytes, at most 4095 are allowed",
    ),
    "selinux-level": (
        lambda r: setattr(context(r).selinux_options, "level", 's0",suid'),
        "config.linux.security_context.selinux_options.level 's0\",suid' may hold only",
    ),
    "windows": (
        lambda r: setattr(r.config.windows.resources, "cpu_count", 1),
        "config.windows.resources is for Windows",
    ),
    "mappings-of-the-node": (
        lambda r: context(r).namespace_options.userns_options.CopyFrom(
            pb.UserNamespace(mode=pb.NODE, uids=[pb.IDMapping(length=1)])
        ),
        "config.linux.security_context.namespace_options.userns_options: mode NODE has no mappings",
    ),
    "labels-too-large": (
        lambda r: r.config.labels.update({"a": "é" * (MAX_LABEL_BYTES // 2)}),
        "config.labels and annotations have",
    ),
    "cpu-quota": (
        lambda r: setattr(r.config.linux.resources, "cpu_quota", -2),
        "config.linux.resources.cpu_quota -2 is neither -1 nor at least 1000",
    ),
    "cpu-period": (
        lambda r: setattr(r.config.linux.resources, "cpu_period", -1),
        "config.linux.resources.cpu_period -1 is not between 1000 and 1000000",
    ),
    "swap": (
        lambda r: setattr(r.config.linux.resources, "memory_swap_limit_in_bytes", -2),
        "config.linux.resources.memory_swap_limit_in_bytes -2 is less than -1",
    ),
    "oom-high": (
        lambda r: setattr(r.config.linux.resources, "oom_score_adj", 1001),
        "config.linux.resources.oom_score_adj 1001 is not between -1000 and 1000",
    ),
    "oom-low": (
        lambda r: setattr(r.config.linux.resources, "oom_score_adj", -1001),
        "config.linux.resources.oom_score_adj -1001 is not between -1000 and 1000",
    ),
    "uid-large": (
        lambda r: setattr(context(r).run_as_user, "value", MAX_ID + 1),
        "config.linux.security_context.run_as_user 2147483648 is not between",
    ),
    "group-without-user": (
        lambda r: context(r).ClearField("run_as_user"),
        "config.linux.security_context.run_as_group needs run_as_user or run_as_username",
    ),
    "uid-and-name": (
        lambda r: setattr(context(r), "run_as_username", "root"),
        "config.linux.security_context.run_as_username must not be given together with run_as_user",
    ),
    "name-with-group": (
        all_of(
            lambda r: context(r).ClearField("run_as_user"),
            lambda r: setattr(context(r), "run_as_username", "app:docker"),
        ),
        "config.linux.security_context.run_as_username 'app:docker' must not hold ':'",
    ),
    "target-without-id": (
        lambda r: context(r).namespace_options.ClearField("target_id"),
        "config.linux.security_context.namespace_options.target_id is empty",
    ),
    "network-container": (
        lambda r: setattr(context(r).namespace_options, "network", pb.CONTAINER),
        "config.linux.security_context.namespace_options.network CONTAINER is not",
    ),
    "ipc-container": (
        lambda r: setattr(context(r).namespace_options, "ipc", pb.CONTAINER),
        "config.linux.security_context.namespace_options.ipc CONTAINER is not",
    ),
    "signal": (
        lambda r: setattr(r.config, "stop_signal", 66),
        "config.stop_signal has the unknown value 66",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD)
def test_invalid_containers_are_refused(change: Change, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        check(change)

    assert str(caught.value).startswith(message)
    assert "hunter2" not in str(caught.value)


def test_a_user_namespace_needs_a_range_of_uids() -> None:
    with pytest.raises(InvalidArgument, match=r"userns_options\.uids must be one mapping, not 0"):
        check(lambda r: setattr(context(r).namespace_options.userns_options, "mode", pb.POD))
