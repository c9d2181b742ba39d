"""Annotations that a setting passes to the OCI runtime, read from the runtime's config.json."""

import json
from collections.abc import Iterator

import grpc
import pytest

from integration.conftest import Images, Served, make_node_dirs, serving
from integration.networks import bridge, conflist
from integration.node.engine import Engine, own_link
from integration.node.isolation import Node, new_home
from integration.pods.kubelet import Kubelet, failure, in_context, in_namespaces
from shim.api.v1 import api_pb2 as pb
from shim.dockerd.runc import SHIM_GROUP

LINK = "annotated0"


@pytest.fixture(scope="module")
def passing(engine: Engine, images: Images, node: Node) -> Iterator[Served]:  # noqa: ARG001 - images must be there
    """A server that passes some annotations to the runtime."""
    dirs = make_node_dirs(node, new_home("annotated"))
    plugin = bridge(dirs.cni_leases, subnets=["10.86.0.0/16"], link=LINK)
    (dirs.cni_conf / "10-annotated.conflist").write_text(conflist(plugin, name="annotated"))
    settings = {"pod_annotations": "dev.gvisor.*,exact,io.containerd.*", "container_annotations": "for.container/*"}
    with own_link(LINK), serving(engine, dirs, **settings) as made:
        yield made


def reported(served: Served, container_id: str) -> dict[str, str]:
    """Return the annotations in the runtime's configuration of a container, without the server's."""
    bundles = served.engine.home / "exec/containerd/daemon/io.containerd.runtime.v2.task/moby"
    spec = json.loads((bundles / container_id / "config.json").read_text())
    return {key: text for key, text in (spec.get("annotations") or {}).items() if key != SHIM_GROUP}


def group(served: Served, container_id: str) -> str:
    """Return the annotation by which a container shares its pod's containerd-shim."""
    annotations = served.engine.api.inspect_container(container_id)["HostConfig"]["Annotations"]
    return str(annotations[SHIM_GROUP])


POD = {"dev.gvisor.spec": "a", "exact": "b", "exactly": "c", "for.container/x": "d", "org.systemd.property.X": "'e'"}
CONTAINER = {"for.container/x": "f", "dev.gvisor.spec": "g", "exact": "h"}


def test_annotations_that_the_setting_names_reach_the_runtime(passing: Served, images: Images) -> None:
    if passing.engine.name == "20.10":
        pytest.skip("the engine cannot")
    kubelet = Kubelet(passing.cri, images.busybox)
    pod = kubelet.pod(annotations=POD)
    container = kubelet.started(pod, annotations=CONTAINER)
    other = kubelet.started(pod)

    assert reported(passing, pod.id) == {"dev.gvisor.spec": "a", "exact": "b"}
    assert reported(passing, container) == {"dev.gvisor.spec": "a", "exact": "b", "for.container/x": "f"}
    assert reported(passing, other) == {"dev.gvisor.spec": "a", "exact": "b"}
    assert dict(passing.cri.container_status(container).annotations) == CONTAINER
    kubelet.remove_all()


def test_an_annotation_cannot_move_a_pod_to_the_containerd_shim_of_another(passing: Served, images: Images) -> None:
    if passing.engine.name == "20.10":
        pytest.skip("the engine has no annotations")
    kubelet = Kubelet(passing.cri, images.busybox)
    alone = in_context(namespace_options=pb.NamespaceOption(pid=pb.CONTAINER))
    first = kubelet.pod(**alone)
    asked = {SHIM_GROUP: group(passing, first.id)}
    second = kubelet.pod(annotations=asked, **alone)
    container = kubelet.started(second, annotations=asked, linux=in_namespaces(pid=pb.CONTAINER))

    assert group(passing, first.id) != group(passing, second.id) == group(passing, container)
    assert dict(passing.cri.container_status(container).annotations) == asked
    kubelet.remove_all()


def test_doctor_reports_an_engine_that_passes_no_annotations(passing: Served, images: Images) -> None:
    if passing.engine.name != "20.10":
        pytest.skip("the engine can")
    kubelet = Kubelet(passing.cri, images.busybox)
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.pod(annotations=POD)
    code, message = failure(refusal)
    assert code == grpc.StatusCode.UNIMPLEMENTED
    assert "config.annotations 'dev.gvisor.spec' for the OCI runtime: needs Docker Engine 24.0 (API 1.43)" in message
    pod = kubelet.pod(annotations={"other": "x"})
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, annotations=CONTAINER)
    assert "'for.container/x'" in failure(refusal)[1]
    kubelet.remove_all()


def test_no_annotation_reaches_the_runtime_by_default(kubelet: Kubelet, served: Served) -> None:
    pod = kubelet.pod(annotations=POD)

    assert not reported(served, pod.id).keys() & POD.keys()
