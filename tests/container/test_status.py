import json

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.container.list import list_containers
from shim.container.status import container_status
from shim.domain import labels
from shim.domain.errors import NotFound
from shim.runtime import Runtime
from tests.conftest import BUSYBOX
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod, running


def test_list_and_status_agree(rt: Runtime) -> None:
    container = running(rt, ready_pod(rt))
    status = container_status(rt, container_id=container, verbose=False).status
    (row,) = list_containers(rt, filter=pb.ContainerFilter())
    for field in ("id", "metadata", "state", "created_at", "image", "image_id", "labels", "annotations"):
        assert getattr(status, field) == getattr(row, field), field
    assert status.log_path == "/var/log/pods/web/app.log"


def test_status_and_list_name_the_same_image(rt: Runtime, engine: FakeEngine) -> None:
    image = rt.view.images.find(BUSYBOX)
    assert image is not None
    status = container_status(rt, container_id=created(rt, ready_pod(rt)), verbose=False).status
    assert status.image_id == image.id
    assert status.image.image == BUSYBOX


@pytest.mark.parametrize(
    ("exit_code", "oom_killed", "reason"), [(0, False, "Completed"), (3, False, "Error"), (137, True, "OOMKilled")]
)
def test_the_status_shows_how_the_container_ended(
    exit_code: int, oom_killed: bool, reason: str, rt: Runtime, engine: FakeEngine
) -> None:
    container = running(rt, ready_pod(rt))
    engine.exit_container(container, exit_code=exit_code, oom_killed=oom_killed)
    rt.view.refresh_container(container)
    status = container_status(rt, container_id=container, verbose=False).status
    assert (status.state, status.exit_code, status.reason) == (pb.CONTAINER_EXITED, exit_code, reason)
    assert status.finished_at >= status.started_at > 0


def test_future_times_are_zero(rt: Runtime) -> None:
    status = container_status(rt, container_id=created(rt, ready_pod(rt)), verbose=False).status
    assert (status.started_at, status.finished_at) == (0, 0)
    assert status.created_at > 0


def test_the_requested_mounts_are_reported(rt: Runtime) -> None:
    mounts = [pb.Mount(host_path="/tmp", container_path="/t", readonly=True)]
    status = container_status(rt, container_id=created(rt, ready_pod(rt), mounts=mounts), verbose=False).status
    assert list(status.mounts) == mounts


def test_verbose_has_the_pid(rt: Runtime) -> None:
    container = running(rt, ready_pod(rt))
    info = json.loads(container_status(rt, container_id=container, verbose=True).info["info"])
    assert info["pid"] == rt.view.container(container).state.pid


def test_the_status_of_an_unknown_container_is_not_found(rt: Runtime) -> None:
    with pytest.raises(NotFound):
        container_status(rt, container_id="f" * 64, verbose=False)


def test_an_image_named_by_id_is_reported_by_its_name(rt: Runtime) -> None:
    image = rt.view.images.find(BUSYBOX)
    assert image is not None
    asked = pb.ImageSpec(image=image.id, user_specified_image="busybox", annotations={"a": "b"})
    container = created(rt, ready_pod(rt), image=asked)
    reported = container_status(rt, container_id=container, verbose=False).status.image
    assert reported.image == BUSYBOX
    assert (reported.user_specified_image, dict(reported.annotations)) == ("busybox", {"a": "b"})
    assert list_containers(rt, filter=pb.ContainerFilter())[0].image == asked


def test_the_numeric_user_is_reported(rt: Runtime, engine: FakeEngine) -> None:
    context = pb.LinuxContainerSecurityContext(run_as_user=pb.Int64Value(value=7), supplemental_groups=[9, 8])
    container = created(rt, ready_pod(rt), linux=pb.LinuxContainerConfig(security_context=context))

    status = container_status(rt, container_id=container, verbose=False).status
    assert status.user == pb.ContainerUser(linux=pb.LinuxContainerUser(uid=7, gid=0, supplemental_groups=[0, 8, 9]))


def test_the_user_of_a_cri_dockerd_container_is_not_guessed(rt: Runtime, engine: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    tags = {"io.kubernetes.docker.type": "container", "io.kubernetes.sandbox.id": sandbox}
    body = {"Image": BUSYBOX, "Labels": tags, "User": "www", "HostConfig": {"NetworkMode": f"container:{sandbox}"}}
    container = engine.create_container(name="k8s_other_web_default_uid-web_0", body=body)
    rt.view.refresh_container(container)

    assert not container_status(rt, container_id=container, verbose=False).status.HasField("user")


def test_a_container_of_cri_dockerd_has_its_termination_message(rt: Runtime, engine: FakeEngine) -> None:
    pause_body = {"Image": BUSYBOX, "Labels": {labels.TYPE: labels.TYPE_SANDBOX}, "HostConfig": {"NetworkMode": "host"}}
    pause = engine.create_container(name="k8s_POD_db_shop_u1_0", body=pause_body)
    message = "/var/lib/kubelet/pods/u1/containers/app/0badcafe"
    body = {
        "Image": BUSYBOX,
        "Labels": {labels.TYPE: labels.TYPE_CONTAINER, labels.SANDBOX_ID: pause},
        "HostConfig": {"NetworkMode": f"container:{pause}", "Binds": [f"{message}:/dev/termination-log"]},
    }
    container = engine.create_container(name="k8s_app_db_shop_u1_0", body=body)
    for made in (pause, container):
        rt.view.refresh_container(made)

    status = container_status(rt, container_id=container, verbose=False).status
    assert [(it.container_path, it.host_path) for it in status.mounts] == [("/dev/termination-log", message)]
