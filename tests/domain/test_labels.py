"""The labels of Docker containers: nothing is lost, and foreign labels are not trusted."""

from collections.abc import MutableSequence
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseError
from google.protobuf.message import Message

from shim.api.v1 import api_pb2 as pb
from shim.domain import labels

LARGEST = {
    FieldDescriptor.CPPTYPE_INT32: 2**31 - 1,
    FieldDescriptor.CPPTYPE_INT64: 2**63 - 1,
    FieldDescriptor.CPPTYPE_UINT32: 2**32 - 1,
    FieldDescriptor.CPPTYPE_UINT64: 2**64 - 1,
    FieldDescriptor.CPPTYPE_DOUBLE: 0.1,
    FieldDescriptor.CPPTYPE_FLOAT: 0.5,
    FieldDescriptor.CPPTYPE_BOOL: True,
}


def fill(message: Message) -> None:
    """Set every field at every depth to a value other than its default."""
    fields: Any = message.DESCRIPTOR.fields
    for field in fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fill_map(getattr(message, field.name), field.message_type.fields_by_name["value"])
        elif field.message_type is not None:
            inner = getattr(message, field.name)
            if isinstance(inner, Message):
                fill(inner)
                inner.SetInParent()
            else:
                fill(inner.add())
        elif isinstance(values := getattr(message, field.name), MutableSequence):
            values.extend([scalar(field), scalar(field)])
        else:
            setattr(message, field.name, scalar(field))


def fill_map(found: Any, value: Any) -> None:
    if value.message_type is not None:
        fill(found["key"])
    else:
        found["key"] = scalar(value)


def scalar(field: Any) -> Any:
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return field.enum_type.values[-1].number
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return b"\x00\xff" if field.type == FieldDescriptor.TYPE_BYTES else f'{field.name} "quoted" büro ☃\n\0'
    return LARGEST[field.cpp_type]


def full_sandbox() -> pb.PodSandboxConfig:
    config = pb.PodSandboxConfig()
    fill(config)
    return config


def full_container() -> pb.ContainerConfig:
    config = pb.ContainerConfig()
    fill(config)
    return config


@pytest.mark.parametrize("config", [pb.PodSandboxConfig(), full_sandbox()], ids=["empty", "full"])
def test_a_sandbox_configuration_round_trips(config: pb.PodSandboxConfig) -> None:
    assert labels.sandbox_config(labels.sandbox_labels(config, runtime_handler="")) == config
    assert labels.sandbox_config_from_dict(labels.config_as_dict(config)) == config


@pytest.mark.parametrize("config", [pb.ContainerConfig(), full_container()], ids=["empty", "full"])
def test_a_container_configuration_round_trips_without_the_fields_that_docker_returns(
    config: pb.ContainerConfig,
) -> None:
    written = labels.container_labels(config, name="k8s_c", sandbox_id="s1", log_path="")
    expected = pb.ContainerConfig()
    expected.CopyFrom(config)
    expected.ClearField("command")
    expected.ClearField("args")
    expected.ClearField("envs")
    assert labels.container_config(written) == expected


def test_writing_labels_leaves_the_request_as_it_was() -> None:
    config = full_container()
    labels.container_labels(config, name="k8s_c", sandbox_id="s1", log_path="")
    assert config == full_container()


def test_no_label_holds_environment_variables() -> None:
    config = pb.ContainerConfig(args=["--token=hunter2"])
    config.envs.add(key="PASSWORD", value=b"hunter2")
    written = labels.container_labels(config, name="k8s_c", sandbox_id="s1", log_path="")
    assert "hunter2" not in str(written)


def test_a_sandbox_has_the_labels_of_docker_backed_nodes() -> None:
    config = pb.PodSandboxConfig(labels={"app": "web"}, annotations={"note": "x"})
    written = labels.sandbox_labels(config, runtime_handler="kata")
    written.pop(labels.CONFIG)
    assert written == {
        "app": "web",
        "annotation.note": "x",
        "io.kubernetes.docker.type": "podsandbox",
        "io.kubernetes.container.name": "POD",
        "io.pydockershim.created-as": "k8s_POD____0",
        "io.pydockershim.runtime-handler": "kata",
    }


def test_a_container_has_the_labels_of_docker_backed_nodes() -> None:
    config = pb.ContainerConfig(labels={"io.kubernetes.container.name": "nginx"}, annotations={"note": "x"})
    written = labels.container_labels(config, name="k8s_c", sandbox_id="s1", log_path="/var/log/pods/p/nginx/0.log")
    written.pop(labels.CONFIG)
    assert written == {
        "io.kubernetes.container.name": "nginx",
        "annotation.note": "x",
        "io.kubernetes.docker.type": "container",
        "io.kubernetes.sandbox.id": "s1",
        "io.kubernetes.container.logpath": "/var/log/pods/p/nginx/0.log",
        "io.pydockershim.created-as": "k8s_c",
    }


def test_the_servers_keys_win_over_labels_of_the_request() -> None:
    stolen = {labels.CONFIG: "{}", labels.TYPE: "podsandbox", labels.SANDBOX_ID: "other", labels.LOG_PATH: "/etc"}
    written = labels.container_labels(pb.ContainerConfig(labels=stolen), name="k8s_c", sandbox_id="s1", log_path="")
    assert written[labels.TYPE] == "container"
    assert written[labels.SANDBOX_ID] == "s1"
    assert written[labels.LOG_PATH] == ""
    assert labels.container_config(written).labels == stolen


def test_labels_of_an_image_are_ignored() -> None:
    written = labels.container_labels(
        pb.ContainerConfig(labels={"app": "web"}), name="k8s_c", sandbox_id="s1", log_path=""
    )
    merged = {"maintainer": "x", "annotation.from-image": "y", **written}
    config = labels.container_config(merged)
    assert dict(config.labels) == {"app": "web"}
    assert dict(config.annotations) == {}


def test_unknown_fields_of_a_newer_server_are_skipped() -> None:
    config = labels.sandbox_config({labels.CONFIG: '{"hostname": "h", "from_the_future": {"a": 1}}'})
    assert config == pb.PodSandboxConfig(hostname="h")


@pytest.mark.parametrize(
    "text", ["", "{", "null", '{"hostname": 1}', "[" * 100_000], ids=["empty", "cut", "null", "wrong type", "too deep"]
)
def test_a_malformed_configuration_label_is_an_error(text: str) -> None:
    with pytest.raises(ParseError):
        labels.sandbox_config({labels.CONFIG: text})


@pytest.mark.parametrize(
    "key",
    [
        "io.pydockershim.config",
        "io.pydockershim.look",
        "io.kubernetes.docker.type",
        "io.kubernetes.sandbox.id",
        "io.kubernetes.container.logpath",
    ],
)
def test_pod_labels_with_the_servers_keys_round_trip_and_have_no_effect(key: str) -> None:
    pod, container = pb.PodSandboxConfig(labels={key: "theirs"}), pb.ContainerConfig(labels={key: "theirs"})

    of_pod = labels.sandbox_labels(pod, runtime_handler="")
    of_container = labels.container_labels(container, name="k8s_c", sandbox_id="s1", log_path="/log")

    assert labels.sandbox_config(of_pod) == pod
    assert labels.container_config(of_container) == container
    assert "theirs" not in {of_pod.get(key), of_container.get(key)}


def test_a_sandbox_is_distinguished_from_a_container_whatever_their_names_and_images() -> None:
    image = {labels.TYPE: "podsandbox", labels.CONTAINER_NAME: "POD"}
    container = pb.ContainerConfig(metadata=pb.ContainerMetadata(name="POD_x"))
    assert not labels.is_sandbox(
        {**image, **labels.container_labels(container, name="k8s_c", sandbox_id="s1", log_path="")}
    )
    image = {labels.TYPE: "container"}
    assert labels.is_sandbox({**image, **labels.sandbox_labels(pb.PodSandboxConfig(), runtime_handler="")})


METADATA = pb.PodSandboxMetadata(name="web", namespace="shop", uid="u")
OURS = labels.sandbox_labels(pb.PodSandboxConfig(metadata=METADATA), runtime_handler="")
"""The name of a pod's pause container."""
RUN_BY_HAND = {"init": None, "userns_mode": "", "container_id_file": ""}
"""The HostConfig of `docker run`."""


def is_ours(tags: dict[str, str], **host: Any) -> bool:
    """Return whether a container is ours whose HostConfig is changed by `host`."""
    proof = labels.ownership_fields(OURS)
    fields = {"init": proof["Init"], "userns_mode": proof["UsernsMode"], "container_id_file": proof["ContainerIDFile"]}
    return labels.is_ours(tags, **(fields | host))


def test_a_container_is_ours_if_its_host_config_has_the_name_of_its_label() -> None:
    assert is_ours(OURS)
    assert labels.created_as(OURS, name="renamed") == "k8s_POD_web_shop_u_0"


@pytest.mark.parametrize(
    "host",
    [
        RUN_BY_HAND,
        RUN_BY_HAND | {"init": False},
        RUN_BY_HAND | {"init": False, "userns_mode": "host"},
        {"container_id_file": "/tmp/id"},
        {"init": None},
        {"init": True},
        {"userns_mode": ""},
    ],
    ids=["run", "no init", "no init, user namespace", "own id file", "init of the daemon", "init", "user namespace"],
)
def test_an_image_with_our_labels_makes_no_container_ours(host: dict[str, Any]) -> None:
    assert not is_ours(OURS, **host)


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ({"container_id_file": ""}, True),
        (RUN_BY_HAND, False),
        (RUN_BY_HAND | {"init": False}, False),
    ],
    ids=["created", "run", "no init"],
)
def test_a_container_of_version_0_1_stays_ours(host: dict[str, Any], ours: bool) -> None:
    older = {key: value for key, value in OURS.items() if key != labels.CREATED_AS}
    assert is_ours(older, **host) is ours
    assert labels.created_as(older, name="k8s_POD_web_shop_u_0") == "k8s_POD_web_shop_u_0"


def test_a_container_of_another_shim_is_not_ours() -> None:
    assert not is_ours({labels.TYPE: labels.TYPE_SANDBOX})


@pytest.mark.parametrize(
    ("tags", "network_mode", "may_be"),
    [
        ({labels.TYPE: "podsandbox"}, "none", True),
        ({labels.TYPE: "container", labels.SANDBOX_ID: "s1"}, "container:s1", True),
        ({labels.TYPE: "container", labels.SANDBOX_ID: "s1"}, "bridge", False),
        ({labels.TYPE: "container", labels.SANDBOX_ID: "s1"}, "container:s2", False),
        ({labels.TYPE: "container"}, "container:None", False),
        ({labels.TYPE: "volume"}, "none", False),
        ({}, "none", False),
    ],
    ids=["sandbox", "in its sandbox", "on a bridge", "in another one", "of no sandbox", "other type", "no type"],
)
def test_a_container_of_a_pod_is_in_the_network_of_its_sandbox(
    tags: dict[str, str], network_mode: str, may_be: bool
) -> None:
    assert labels.may_be_of_a_pod(tags, network_mode=network_mode) is may_be


def test_a_stop_signal_that_an_older_server_has_written_is_read() -> None:
    written = labels.container_labels(
        pb.ContainerConfig(stop_signal=pb.SIGNAL_SIGUSR1), name="k8s_c", sandbox_id="s1", log_path=""
    )
    assert '"SIGNAL_SIGUSR1"' in written[labels.CONFIG]
    written[labels.CONFIG] = written[labels.CONFIG].replace("SIGNAL_SIGUSR1", "SIGUSR1")
    assert labels.container_config(written).stop_signal == pb.SIGNAL_SIGUSR1
