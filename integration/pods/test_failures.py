"""Each step of RunPodSandbox fails in turn: nothing is left, and the second try works."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import grpc
import pytest

from integration.cri import Cri, container_config, pod_config
from integration.node import images
from integration.node.images import busybox_image
from integration.node.isolation import Node
from integration.pods.fault_proxy import Moment
from integration.pods.faulty_node import PAUSE, PLUGIN_SECONDS, FaultyNode
from integration.pods.faulty_plugin import TYPE
from integration.pods.kubelet import failure, refusal, unused_name, wait_image, wait_no_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.domain.names import INSPECTION_PREFIX

CREATE, START, INSPECT = "POST /containers/create", "POST /containers/.*/start", "GET /containers/.*/json"
ERROR_OBJECT = '{"cniVersion": "1.0.0", "code": 11, "msg": "no luck", "details": "today"}'
Code = grpc.StatusCode


@dataclass(frozen=True)
class Step:
    """A step's failure, and the resulting error of the RPC."""

    name: str
    failing: Callable[[FaultyNode], AbstractContextManager[object]]
    code: grpc.StatusCode
    says: str
    leaves: bool = False
    """Whether something stays until Stop and Remove, because the rollback fails as well or cannot know of it."""
    unfinished: Callable[[FaultyNode], AbstractContextManager[object]] = lambda _: nullcontext()
    """A second failure, which lasts until a call of Stop has failed."""


@contextmanager
def full_disk_after(faulty_node: FaultyNode, call: str) -> Iterator[None]:
    """Fill the disk once Docker has done `call`."""
    try:
        with faulty_node.proxy.followed(call, faulty_node.disk.fill):
            yield
    finally:
        faulty_node.disk.make_room()


@contextmanager
def emptied_resolv_conf(faulty_node: FaultyNode) -> Iterator[None]:
    """Empty the pod's resolv.conf while pause starts, and fill the disk so that it cannot be written again."""

    def change() -> None:
        for path in (faulty_node.served.dirs.state / "resolv-conf").iterdir():
            path.write_bytes(b"")
        faulty_node.disk.fill()

    try:
        with faulty_node.proxy.followed(START, change):
            yield
    finally:
        faulty_node.disk.make_room()


@contextmanager
def pause_that_dies(faulty_node: FaultyNode) -> Iterator[None]:
    """Kill pause while it starts."""

    def kill() -> None:
        api = faulty_node.served.engine.api
        for row in api.containers(quiet=True):
            api.kill(row["Id"])
            api.wait(row["Id"])

    with faulty_node.proxy.followed(START, kill):
        yield


@contextmanager
def plugin_that_vanishes(faulty_node: FaultyNode) -> Iterator[None]:
    """Remove the plugin's binary once pause has been created."""
    binary = faulty_node.plugin.directory / TYPE
    hidden = binary.with_suffix(".hidden")
    with faulty_node.proxy.followed(CREATE, lambda: binary.rename(hidden)):
        yield
    hidden.rename(binary)


STEPS = (
    Step(
        "pause image",
        FaultyNode.without_pause_image,
        Code.FAILED_PRECONDITION,
        f"pause image {PAUSE} is not on this node",
    ),
    Step("create", lambda f: f.proxy.refused(CREATE), Code.UNKNOWN, "out of order"),
    Step("create unanswered", lambda f: f.proxy.unanswered(CREATE), Code.UNAVAILABLE, "create container", leaves=True),
    Step("checkpoint", lambda f: full_disk_after(f, CREATE), Code.RESOURCE_EXHAUSTED, "no space left"),
    Step("start", lambda f: f.proxy.refused(START), Code.UNKNOWN, "out of order"),
    Step("start of pause", FaultyNode.with_pause_that_cannot_start, Code.UNKNOWN, "/missing"),
    Step("start unanswered", lambda f: f.proxy.unanswered(START), Code.UNAVAILABLE, "start container"),
    Step("inspect", lambda f: f.proxy.refused(INSPECT, every=True), Code.UNKNOWN, "out of order"),
    Step("resolv.conf", emptied_resolv_conf, Code.RESOURCE_EXHAUSTED, "resolv-conf"),
    Step("pin", pause_that_dies, Code.FAILED_PRECONDITION, "pin the network namespace"),
    Step("ADD exits 1", lambda f: f.plugin.before("ADD", "exit 1"), Code.UNKNOWN, "exited with code 1"),
    Step(
        "ADD prints an error",
        lambda f: f.plugin.after("ADD", f"out='{ERROR_OBJECT}'; code=1"),
        Code.UNKNOWN,
        "no luck (code 11): today",
    ),
    Step("ADD prints garbage", lambda f: f.plugin.after("ADD", "out=nonsense"), Code.UNKNOWN, "no JSON: 'nonsense'"),
    Step("ADD prints no result", lambda f: f.plugin.after("ADD", "out='[]'"), Code.UNKNOWN, "no result object"),
    Step(
        "ADD prints 10 MB",
        lambda f: f.plugin.after("ADD", "head -c 10000000 /dev/zero; exit 0"),
        Code.UNKNOWN,
        "printed more than",
    ),
    Step("ADD dies", lambda f: f.plugin.after("ADD", "kill -9 $$"), Code.UNKNOWN, "killed by signal 9"),
    Step(
        "ADD hangs",
        lambda f: f.plugin.before("ADD", "sleep 1000"),
        Code.DEADLINE_EXCEEDED,
        f"not finished within {PLUGIN_SECONDS} s",
    ),
    Step("no plugin", plugin_that_vanishes, Code.FAILED_PRECONDITION, "not found", leaves=True),
    Step("last checkpoint", lambda f: full_disk_after(f, START), Code.RESOURCE_EXHAUSTED, "no space left"),
    Step(
        "DEL as well",
        lambda f: f.plugin.after("ADD", "code=1"),
        Code.UNKNOWN,
        "exited with code 1",
        leaves=True,
        unfinished=lambda f: f.plugin.before("DEL", "exit 1"),
    ),
)
every_step = pytest.mark.parametrize("step", [pytest.param(step, id=step.name) for step in STEPS])


@every_step
def test_a_step_that_fails_leaves_nothing(faulty_node: FaultyNode, step: Step) -> None:
    config = pod_config(unused_name("failing"))
    before = faulty_node.snapshot()

    with step.unfinished(faulty_node):
        with step.failing(faulty_node), pytest.raises(grpc.RpcError) as refusal:
            faulty_node.cri.run(config)
        code, message = failure(refusal)
        assert (code, step.says in message) == (step.code, True), message
        if step.leaves:
            left = wait_until(faulty_node.cri.sandboxes)
            assert [(one.metadata, one.state) for one in left] == [(config.metadata, pb.SANDBOX_NOTREADY)]
    assert (faulty_node.snapshot() != before) == step.leaves

    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


@every_step
def test_a_second_run_succeeds_after_a_failed_step(faulty_node: FaultyNode, step: Step) -> None:
    config = pod_config(unused_name("failing"))
    before = faulty_node.snapshot()
    with step.unfinished(faulty_node), step.failing(faulty_node), pytest.raises(grpc.RpcError):
        faulty_node.cri.run(config)

    sandbox = faulty_node.cri.run(config)

    assert faulty_node.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY
    assert faulty_node.cri.sandbox_status(sandbox).network.ip.startswith("10.93.")
    faulty_node.served.clear()
    assert faulty_node.snapshot() == before


def test_a_full_disk_does_not_keep_a_pod_from_being_stopped_and_removed(faulty_node: FaultyNode) -> None:
    before = faulty_node.snapshot()
    sandbox = faulty_node.cri.run(pod_config(unused_name("full")))
    faulty_node.disk.fill()
    try:
        faulty_node.cri.stop(sandbox)
        faulty_node.cri.remove(sandbox)
    finally:
        faulty_node.disk.make_room()

    assert faulty_node.snapshot() == before


# --- Stop and Remove --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Cri.stop, Cri.remove], ids=["Stop", "Remove"])
def test_a_failed_network_release_is_repeated_until_it_succeeds(
    faulty_node: FaultyNode, verb: Callable[[Cri, str], None]
) -> None:
    before = faulty_node.snapshot()
    sandbox = faulty_node.cri.run(pod_config(unused_name("failing")))
    reserved = faulty_node.snapshot()[0].leases
    assert reserved != before[0].leases

    with faulty_node.plugin.before("DEL", f"echo '{ERROR_OBJECT}'; exit 1"):
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as refusal:
                verb(faulty_node.cri, sandbox)
            assert "no luck (code 11): today" in failure(refusal)[1]
            assert faulty_node.cri.sandbox_status(sandbox).state == pb.SANDBOX_NOTREADY
            assert faulty_node.snapshot()[0].leases == reserved
    verb(faulty_node.cri, sandbox)
    assert faulty_node.snapshot()[0].leases == before[0].leases

    faulty_node.cri.remove(sandbox)
    assert faulty_node.snapshot() == before


def test_a_network_is_released_only_once(faulty_node: FaultyNode) -> None:
    # By then another pod may have the address.
    sandbox = faulty_node.cri.run(pod_config(unused_name("failing")))
    faulty_node.cri.stop(sandbox)

    with faulty_node.plugin.before("DEL", "exit 1"):
        faulty_node.cri.stop(sandbox)
        faulty_node.cri.remove(sandbox)


REMOVE, KILL = "DELETE /containers/", "POST /containers/.*/kill"


@pytest.mark.parametrize(
    "fault",
    [
        lambda f: f.proxy.refused(KILL),
        lambda f: f.proxy.unanswered(KILL),
        lambda f: f.proxy.refused(REMOVE),
        lambda f: f.proxy.unanswered(REMOVE),
        lambda f: f.plugin.after("DEL", "exit 1"),
    ],
    ids=["kill", "kill unanswered", "remove", "remove unanswered", "DEL after its work"],
)
def test_a_second_remove_finishes_a_failed_one(
    faulty_node: FaultyNode, fault: Callable[[FaultyNode], AbstractContextManager[object]]
) -> None:
    before = faulty_node.snapshot()
    sandbox = faulty_node.cri.run(pod_config(unused_name("failing")))

    with fault(faulty_node), pytest.raises(grpc.RpcError):
        faulty_node.cri.remove(sandbox)
    assert sandbox in {one.id for one in faulty_node.cri.sandboxes()}

    faulty_node.cri.remove(sandbox)
    assert faulty_node.snapshot() == before


# --- inspection of images -----------------------------------------------------------------------------------------


@contextmanager
def unknown_image(faulty_node: FaultyNode, node: Node) -> Iterator[str]:
    """Provide an image that the server has not inspected."""
    reference = f"{unused_name('inspected.test/new')}:1"
    image = busybox_image(node.busybox, reference=reference, config={"Labels": {"test": reference}})
    images.load(faulty_node.served.engine.api, image)
    wait_image(faulty_node.cri, reference)
    yield reference
    faulty_node.served.engine.api.remove_image(reference, force=True)
    wait_no_image(faulty_node.cri, reference)


def inspection_containers(faulty_node: FaultyNode) -> list[str]:
    """Return the names of the image-inspection containers."""
    rows = faulty_node.served.engine.api.containers(all=True, filters={"name": INSPECTION_PREFIX})
    return [name for row in rows for name in row["Names"]]


def test_an_image_inspection_whose_container_id_is_lost_leaves_nothing(faulty_node: FaultyNode, node: Node) -> None:
    config = pod_config(unused_name("inspecting"))
    sandbox = faulty_node.cri.run(config)
    before = faulty_node.snapshot()
    with unknown_image(faulty_node, node) as image:
        asked = container_config(unused_name("c"), image=image)
        with faulty_node.proxy.held(f"{CREATE}.*{INSPECTION_PREFIX}", at=Moment.AFTER) as held:
            call = faulty_node.cri.runtime.CreateContainer.future(
                pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=asked, sandbox_config=config)
            )
            held.wait_reached()
            made = inspection_containers(faulty_node)
        code, message = refusal(call.result)

        assert len(made) == 1
        assert (code, "create container" in message) == (Code.UNAVAILABLE, True), message
        wait_until(lambda: inspection_containers(faulty_node) == [])
        assert faulty_node.snapshot() == before
        faulty_node.cri.remove_container(faulty_node.cri.create(sandbox, asked, pod=config))
    faulty_node.served.clear()


def test_an_image_inspection_whose_container_cannot_be_removed_now_leaves_nothing(
    faulty_node: FaultyNode, node: Node
) -> None:
    config = pod_config(unused_name("inspecting"))
    sandbox = faulty_node.cri.run(config)
    with unknown_image(faulty_node, node) as image:
        with faulty_node.proxy.refused(REMOVE):
            container = faulty_node.cri.create(sandbox, container_config(unused_name("c"), image=image), pod=config)
        wait_until(lambda: inspection_containers(faulty_node) == [])
        faulty_node.cri.remove_container(container)
    faulty_node.served.clear()
