"""Each step of RunPodSandbox fails in turn: nothing is left, and the second try works."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import grpc
import pytest

from integration.cri import Cri, container_config, pod_config
from integration.node import images
from integration.node.box import Node
from integration.node.images import busybox_image
from integration.pods.frail import PAUSE, PLUGIN_SECONDS, Frail
from integration.pods.kubelet import failure, refusal, unused_name, wait_image, wait_no_image
from integration.pods.plugin import TYPE
from integration.pods.wire import Moment
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.domain.names import LOOK_PREFIX

CREATE, START, INSPECT = "POST /containers/create", "POST /containers/.*/start", "GET /containers/.*/json"
ERROR_OBJECT = '{"cniVersion": "1.0.0", "code": 11, "msg": "no luck", "details": "today"}'
Code = grpc.StatusCode


@dataclass(frozen=True)
class Step:
    """How one step fails, and what the error of the RPC then is."""

    name: str
    failing: Callable[[Frail], AbstractContextManager[object]]
    code: grpc.StatusCode
    says: str
    leaves: bool = False
    """Whether something is there until Stop and Remove, since the undo fails as well or cannot know of it."""
    unfinished: Callable[[Frail], AbstractContextManager[object]] = lambda _: nullcontext()
    """A further failure, which lasts until the kubelet has called Stop in vain."""


@contextmanager
def full_disk_after(frail: Frail, call: str) -> Iterator[None]:
    """Leave no room on the disk once Docker has done `call`."""
    try:
        with frail.wire.followed(call, frail.disk.fill):
            yield
    finally:
        frail.disk.make_room()


@contextmanager
def emptied_resolv_conf(frail: Frail) -> Iterator[None]:
    """Let somebody empty the pod's resolv.conf while pause starts, and the disk have no room to write it again."""

    def change() -> None:
        for path in (frail.served.dirs.state / "resolv-conf").iterdir():
            path.write_bytes(b"")
        frail.disk.fill()

    try:
        with frail.wire.followed(START, change):
            yield
    finally:
        frail.disk.make_room()


@contextmanager
def pause_that_dies(frail: Frail) -> Iterator[None]:
    """Let pause be killed while it starts."""

    def kill() -> None:
        api = frail.served.engine.api
        for row in api.containers(quiet=True):
            api.kill(row["Id"])
            api.wait(row["Id"])

    with frail.wire.followed(START, kill):
        yield


@contextmanager
def plugin_that_vanishes(frail: Frail) -> Iterator[None]:
    """Let the plugin's binary be gone once pause has started."""
    binary = frail.plugin.directory / TYPE
    hidden = binary.with_suffix(".hidden")
    with frail.wire.followed(START, lambda: binary.rename(hidden)):
        yield
    hidden.rename(binary)


STEPS = (
    Step(
        "pause image", Frail.without_pause_image, Code.FAILED_PRECONDITION, f"pause image {PAUSE} is not on this node"
    ),
    Step("create", lambda f: f.wire.refused(CREATE), Code.UNKNOWN, "out of order"),
    Step("create unanswered", lambda f: f.wire.unanswered(CREATE), Code.UNAVAILABLE, "create container", leaves=True),
    Step("checkpoint", lambda f: full_disk_after(f, CREATE), Code.RESOURCE_EXHAUSTED, "no space left"),
    Step("start", lambda f: f.wire.refused(START), Code.UNKNOWN, "out of order"),
    Step("start unanswered", lambda f: f.wire.unanswered(START), Code.UNAVAILABLE, "start container"),
    Step("inspect", lambda f: f.wire.refused(INSPECT, every=True), Code.UNKNOWN, "out of order"),
    Step("resolv.conf", emptied_resolv_conf, Code.RESOURCE_EXHAUSTED, "resolv-conf"),
    Step("pin", pause_that_dies, Code.FAILED_PRECONDITION, "pin the network namespace"),
    Step("ADD exits 1", lambda f: f.plugin.before("ADD", "exit 1"), Code.UNKNOWN, "exited with code 1"),
    Step(
        "ADD tells an error",
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
def test_a_step_that_fails_leaves_nothing(frail: Frail, step: Step) -> None:
    config = pod_config(unused_name("failing"))
    before = frail.traces()

    with step.unfinished(frail):
        with step.failing(frail), pytest.raises(grpc.RpcError) as refusal:
            frail.cri.run(config)
        code, message = failure(refusal)
        assert (code, step.says in message) == (step.code, True), message
        if step.leaves:
            left = wait_until(frail.cri.sandboxes)
            assert [(one.metadata, one.state) for one in left] == [(config.metadata, pb.SANDBOX_NOTREADY)]
    assert (frail.traces() != before) == step.leaves

    frail.served.clear()
    assert frail.traces() == before


@every_step
def test_the_second_try_works(frail: Frail, step: Step) -> None:
    config = pod_config(unused_name("failing"))
    before = frail.traces()
    with step.unfinished(frail), step.failing(frail), pytest.raises(grpc.RpcError):
        frail.cri.run(config)

    sandbox = frail.cri.run(config)

    assert frail.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY
    assert frail.cri.sandbox_status(sandbox).network.ip.startswith("10.93.")
    frail.served.clear()
    assert frail.traces() == before


def test_a_full_disk_does_not_keep_a_pod_from_being_stopped_and_removed(frail: Frail) -> None:
    before = frail.traces()
    sandbox = frail.cri.run(pod_config(unused_name("full")))
    frail.disk.fill()
    try:
        frail.cri.stop(sandbox)
        frail.cri.remove(sandbox)
    finally:
        frail.disk.make_room()

    assert frail.traces() == before


# --- Stop and Remove --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Cri.stop, Cri.remove], ids=["Stop", "Remove"])
def test_a_release_that_fails_is_repeated_until_it_succeeds(frail: Frail, verb: Callable[[Cri, str], None]) -> None:
    before = frail.traces()
    sandbox = frail.cri.run(pod_config(unused_name("failing")))
    reserved = frail.traces()[0].leases
    assert reserved != before[0].leases

    with frail.plugin.before("DEL", f"echo '{ERROR_OBJECT}'; exit 1"):
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as refusal:
                verb(frail.cri, sandbox)
            assert "no luck (code 11): today" in failure(refusal)[1]
            assert frail.cri.sandbox_status(sandbox).state == pb.SANDBOX_NOTREADY
            assert frail.traces()[0].leases == reserved
    verb(frail.cri, sandbox)
    assert frail.traces()[0].leases == before[0].leases

    frail.cri.remove(sandbox)
    assert frail.traces() == before


def test_what_was_released_is_not_released_again(frail: Frail) -> None:
    # Its address may be another pod's by then.
    sandbox = frail.cri.run(pod_config(unused_name("failing")))
    frail.cri.stop(sandbox)

    with frail.plugin.before("DEL", "exit 1"):
        frail.cri.stop(sandbox)
        frail.cri.remove(sandbox)


REMOVE, KILL = "DELETE /containers/", "POST /containers/.*/kill"


@pytest.mark.parametrize(
    "trouble",
    [
        lambda f: f.wire.refused(KILL),
        lambda f: f.wire.unanswered(KILL),
        lambda f: f.wire.refused(REMOVE),
        lambda f: f.wire.unanswered(REMOVE),
        lambda f: f.plugin.after("DEL", "exit 1"),
    ],
    ids=["kill", "kill unanswered", "remove", "remove unanswered", "DEL after its deed"],
)
def test_a_remove_that_fails_is_finished_by_the_next(
    frail: Frail, trouble: Callable[[Frail], AbstractContextManager[object]]
) -> None:
    before = frail.traces()
    sandbox = frail.cri.run(pod_config(unused_name("failing")))

    with trouble(frail), pytest.raises(grpc.RpcError):
        frail.cri.remove(sandbox)
    assert sandbox in {one.id for one in frail.cri.sandboxes()}

    frail.cri.remove(sandbox)
    assert frail.traces() == before


# --- InFlightReads into images ------------------------------------------------------------------------------------


@contextmanager
def unknown_image(frail: Frail, node: Node) -> Iterator[str]:
    """Have an image for the block that the server has not looked into."""
    reference = f"{unused_name('looked.test/into')}:1"
    image = busybox_image(node.busybox, reference=reference, config={"Labels": {"test": reference}})
    images.load(frail.served.engine.api, image)
    wait_image(frail.cri, reference)
    yield reference
    frail.served.engine.api.remove_image(reference, force=True)
    wait_no_image(frail.cri, reference)


def looks(frail: Frail) -> list[str]:
    """Names of the containers of looks that are there."""
    rows = frail.served.engine.api.containers(all=True, filters={"name": LOOK_PREFIX})
    return [name for row in rows for name in row["Names"]]


def test_a_look_whose_container_docker_could_not_tell_leaves_nothing(frail: Frail, node: Node) -> None:
    config = pod_config(unused_name("looking"))
    sandbox = frail.cri.run(config)
    before = frail.traces()
    with unknown_image(frail, node) as image:
        asked = container_config(unused_name("c"), image=image)
        with frail.wire.held(f"{CREATE}.*{LOOK_PREFIX}", at=Moment.AFTER) as held:
            call = frail.cri.runtime.CreateContainer.future(
                pb.CreateContainerRequest(pod_sandbox_id=sandbox, config=asked, sandbox_config=config)
            )
            held.wait_reached()
            made = looks(frail)
        code, message = refusal(call.result)

        assert len(made) == 1
        assert (code, "create container" in message) == (Code.UNAVAILABLE, True), message
        wait_until(lambda: looks(frail) == [])
        assert frail.traces() == before
        frail.cri.remove_container(frail.cri.create(sandbox, asked, pod=config))
    frail.served.clear()


def test_a_look_whose_container_cannot_be_removed_now_leaves_nothing(frail: Frail, node: Node) -> None:
    config = pod_config(unused_name("looking"))
    sandbox = frail.cri.run(config)
    with unknown_image(frail, node) as image:
        with frail.wire.refused(REMOVE):
            container = frail.cri.create(sandbox, container_config(unused_name("c"), image=image), pod=config)
        wait_until(lambda: looks(frail) == [])
        frail.cri.remove_container(container)
    frail.served.clear()
