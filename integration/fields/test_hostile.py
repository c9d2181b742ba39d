"""Hostile configurations: NUL bytes in every text, paths with `..`, images that imitate the server's labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from integration.conftest import Images, Served
from integration.cri import container_config, pod_config
from integration.pods.kubelet import Kubelet, Pod, failure, secured, unused_name, wait_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

NUL = "a\0b"
Way = tuple[FieldDescriptor, ...]


def texts_of(message: type[Message]) -> dict[str, Way]:
    """Map the dotted name of each text field of a message, at any depth, to its path."""
    return {".".join(field.name for field in path): path for path in _texts(message.DESCRIPTOR, ())}


def _texts(descriptor: Any, above: Way) -> Iterator[Way]:
    for field in descriptor.fields:
        path = (*above, field)
        if field.message_type:
            yield from _texts(field.message_type, path)
        elif field.type in {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}:
            yield path


def with_nul(message: Message, path: Way) -> None:
    """Put a NUL into the text at `path`; messages on the path are made."""
    field, *rest = path
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        entry = {NUL: "x"} if rest[0].name == "key" else {"x": NUL}
        getattr(message, field.name).update(entry)
        return
    if rest:
        inner = getattr(message, field.name)
        inner = inner.add() if field.is_repeated else inner
        inner.SetInParent()
        with_nul(inner, tuple(rest))
        return
    value: str | bytes = NUL.encode() if field.type == FieldDescriptor.TYPE_BYTES else NUL
    if field.is_repeated:
        getattr(message, field.name).append(value)
    else:
        setattr(message, field.name, value)


POD_TEXTS, CONTAINER_TEXTS = texts_of(pb.PodSandboxConfig), texts_of(pb.ContainerConfig)
ANY_TEXT = {"annotations.value", "image.annotations.value"}
"""Fields that may hold a NUL: the API server accepts it there, and the server writes it only to JSON."""


@pytest.mark.parametrize("name", sorted(POD_TEXTS.keys() - ANY_TEXT))
def test_a_nul_in_any_text_of_a_pod_is_refused_by_name(served: Served, name: str) -> None:
    config = pod_config(unused_name("nul"))
    with_nul(config, POD_TEXTS[name])

    with pytest.raises(grpc.RpcError) as refusal:
        served.cri.run(config)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith(f"config.{name.partition('.')[0]}")


@pytest.mark.parametrize("name", sorted(CONTAINER_TEXTS.keys() - ANY_TEXT))
def test_a_nul_in_any_text_of_a_container_is_refused_by_name(
    served: Served, pod: Pod, images: Images, name: str
) -> None:
    config = container_config(unused_name("nul"), image=images.busybox)
    with_nul(config, CONTAINER_TEXTS[name])

    with pytest.raises(grpc.RpcError) as refusal:
        served.cri.create(pod.id, config, pod=pod.config)

    code, message = failure(refusal)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert message.startswith(f"config.{name.partition('.')[0]}")


def test_the_walk_finds_every_text_field() -> None:
    assert {"hostname", "dns_config.servers", "linux.security_context.seccomp.localhost_ref"} <= POD_TEXTS.keys()
    assert {"command", "envs.value", "mounts.image.annotations.key", "CDI_devices.name"} <= CONTAINER_TEXTS.keys()


# --- `..` -------------------------------------------------------------------------------------------------


def test_a_working_directory_cannot_leave_the_container(kubelet: Kubelet, pod: Pod) -> None:
    container = kubelet.started(pod, working_dir="/../../../no-such/../of-pydockershim")

    assert kubelet.inside(container, "pwd; ls -d /of-pydockershim") == "/of-pydockershim\n/of-pydockershim\n"
    assert not Path("/of-pydockershim").exists()


def test_masked_paths_with_dots_are_hidden_inside_the_container(kubelet: Kubelet, pod: Pod) -> None:
    paths = ["/../../etc/passwd"]
    container = kubelet.started(pod, **secured(masked_paths=paths))

    assert kubelet.inside(container, "cat /etc/passwd") == ""


# --- images that imitate ----------------------------------------------------------------------------------


def test_labels_of_an_image_do_not_become_the_containers(
    kubelet: Kubelet, pod: Pod, images: Images, served: Served
) -> None:
    plain = kubelet.created(pod)
    labels = served.engine.api.inspect_container(plain)["Config"]["Labels"]
    own = [key for key in labels if key.startswith("io.")]
    reference = "node.test/imitating:1"
    images.load(reference, {"Labels": dict.fromkeys([*own, "io.pydockershim.anything", "annotation.x"], "forged")})
    wait_image(served.cri, reference)
    try:
        container = kubelet.started(pod, image=reference)
        found = served.engine.api.inspect_container(container)["Config"]["Labels"]
        assert [key for key in own if found[key] == "forged" and key != "io.kubernetes.container.name"] == []
        status = kubelet.cri.container_status(container)
        assert (dict(status.annotations), status.state) == ({}, pb.CONTAINER_RUNNING)
        assert "forged" not in str(status)
        assert kubelet.inside(container, "echo fine") == "fine\n"
    finally:
        kubelet.remove_all()
        served.engine.api.remove_image(reference, force=True)


def test_a_users_container_of_an_imitating_image_is_not_listed(served: Served, images: Images) -> None:
    reference = "node.test/imitating:2"
    config = '{"metadata": {"name": "forged"}}'
    labels = {
        "io.kubernetes.docker.type": "container",
        "io.pydockershim.config": config,
        "io.kubernetes.sandbox.id": "0",
    }
    images.load(reference, {"Labels": labels})
    api = served.engine.api
    alone = api.create_host_config(network_mode="none")
    stranger = api.create_container(reference, ["sleep", "60"], name=unused_name("stranger"), host_config=alone)["Id"]
    try:
        api.start(stranger)
        # Once a later pod is listed, the events about the stranger have been seen.
        marker = served.cri.run(pod_config(unused_name("marker")))
        assert stranger not in {container.id for container in served.cri.containers()}
        with pytest.raises(grpc.RpcError) as refusal:
            served.cri.container_status(stranger)
        assert failure(refusal)[0] == grpc.StatusCode.NOT_FOUND
        served.cri.remove(marker)
    finally:
        api.remove_container(stranger, force=True)
        api.remove_image(reference, force=True)


def test_a_cri_dockerd_container_of_an_imitating_image_is_not_taken_for_ours(
    kubelet: Kubelet, pod: Pod, images: Images, served: Served
) -> None:
    """It has cri-dockerd's name, and cri-dockerd's labels override the image's."""
    reference = "node.test/imitating:3"
    config = '{"metadata": {"name": "forged", "attempt": 9}, "labels": {"app": "forged"}}'
    images.load(reference, {"Labels": {"io.pydockershim.config": config}})
    labels = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": pod.id, "app": "theirs"}
    name, api = unused_name("theirs"), served.engine.api
    other = api.create_container(
        reference,
        ["sleep", "60"],
        name=f"k8s_{name}_pod_ns_uid_0",
        labels=labels,
        host_config=api.create_host_config(network_mode=f"container:{pod.id}"),
    )["Id"]
    try:
        api.start(other)
        wait_until(lambda: [one.state for one in kubelet.cri.containers(id=other)] == [pb.CONTAINER_RUNNING])
        [listed] = kubelet.cri.containers(id=other)
        assert (listed.metadata, listed.pod_sandbox_id) == (pb.ContainerMetadata(name=name), pod.id)
        assert listed.labels["app"] == "theirs"
        assert kubelet.cri.container_status(other).metadata == pb.ContainerMetadata(name=name)
    finally:
        api.remove_container(other, force=True)
        api.remove_image(reference, force=True)
