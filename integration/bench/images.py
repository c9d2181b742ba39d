"""Images: pulls through CRI servers compared to Docker's pulls, and ListImages with many images."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from integration.bench import figures
from integration.bench.direct_cri import direct_cri
from integration.bench.figures import FLOOR, IMAGE_PAIRS, SERVER, Images
from integration.bench.floor import DirectDocker
from integration.bench.rivals import Rival
from integration.bench.rounds import rotated
from integration.bench.setup import Setup
from integration.bench.timings import Timings
from integration.cri import Cri
from integration.node import images
from integration.node.commands import NodeError
from integration.node.images import File, Image
from integration.node.isolation import this_node
from integration.node.registry import Registry
from integration.server import Server
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

PRESENT = 200
"""Images on the node for ListImages: more than the kubelet's garbage collection leaves on most nodes."""
LISTS = 50
_PRESENT_PULLS = 3
"""Pulls of a present image in each round; their median counts, because such short pulls are noisy."""

_MADE = "bench/made:1"
_BYTES = 1 << 20
"""Size of the pulled image's layer; random bytes, so that compression does not shrink it."""
_SEEN_SECONDS = 60.0

TimedRounds = dict[str, list[Timings]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Puller:
    pull: Callable[[str], object]
    forget: Callable[[str], object]
    """Remove the image, so that the next pull is complete."""
    settle: Callable[[str, bool], None]
    """`settle(reference, present)` returns when all work after the last change is done."""


def measure_images(
    setup: Setup, cri: Cri, server: Server, *, others: Sequence[Rival], rounds: int
) -> tuple[Images, TimedRounds]:
    """Pull `rounds` times on all sides, then list PRESENT images of the server; all added images are removed.

    Returns the figures of the floor and the server, and the rounds of pulls of all sides.
    """
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs only in isolation: make bench")
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=setup.home / "registry")
    registry.start()
    api = setup.engine.api
    docker = DirectDocker(setup.engine.socket, version=api.api_version)
    with closing(docker):
        try:
            images.load(api, Image(_MADE, (File("noise", os.urandom(_BYTES)),)))
            reference = registry.push(api, _MADE, name="bench/app:1")
            api.remove_image(_MADE)
            with ExitStack() as stack:
                direct = stack.enter_context(direct_cri(server.socket))
                sides = _both(docker, direct, server, cri)
                for other in others:
                    sides[other.name] = _puller(stack.enter_context(direct_cri(other.socket)), other.cri)
                timed_rounds = _pulls(sides, reference=reference, rounds=rounds)
            docker.delete(f"/images/{reference}?force=1")
        finally:
            registry.stop()
        present, lists = _lists(setup, docker, cri)
    both = timed_rounds[FLOOR], timed_rounds[SERVER]
    return figures.images(both, present=present, lists=lists), timed_rounds


def _both(docker: DirectDocker, direct: Cri, server: Server, cri: Cri) -> dict[str, _Puller]:
    """Return the floor and the server, which share one engine.

    Each pull begins when the server is idle: the server refreshes its images a moment after each change, also after
    Docker's own, and a pull on one side must not overlap the refresh after the previous pull. Neither side uses a
    client library, since its time in the client would count as the server's.
    """

    def forget(reference: str) -> None:
        docker.delete(f"/images/{reference}?force=1")

    def settle(reference: str, present: bool) -> None:
        _wait_seen(cri, reference, present=present)
        server.wait_idle()

    docker_side, server_side = (
        _Puller(pull=pull, forget=forget, settle=settle) for pull in (docker.pull, partial(_pull, direct))
    )
    return {FLOOR: docker_side, SERVER: server_side}


def _pull(direct: Cri, image: str) -> None:
    direct.images.PullImage(pb.PullImageRequest(image=pb.ImageSpec(image=image)))


def _puller(direct: Cri, cri: Cri) -> _Puller:
    """Return the side of another server, which has a separate engine."""

    def forget(reference: str) -> None:
        # By id, as the kubelet does: cri-dockerd accepts nothing else.
        found = cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=reference))).image.id
        cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=found)))

    def settle(reference: str, present: bool) -> None:
        _wait_seen(cri, reference, present=present)

    return _Puller(pull=partial(_pull, direct), forget=forget, settle=settle)


def _pulls(sides: dict[str, _Puller], *, reference: str, rounds: int) -> TimedRounds:
    """Pull on all sides in turn, first a missing image, then the same image again."""
    for side in sides.values():  # not counted: the first pull fills caches
        side.pull(reference)
        side.settle(reference, True)
    timed_rounds: TimedRounds = {name: [] for name in sides}
    for number in range(rounds):
        for name in rotated(list(sides), number):
            timed_rounds[name].append(_timed_pulls(sides[name], name, reference))
    return timed_rounds


def _timed_pulls(side: _Puller, name: str, reference: str) -> Timings:
    timings = Timings()
    side.forget(reference)
    side.settle(reference, False)
    timings.call(_name("new image", side=name), lambda: side.pull(reference))
    for _ in range(_PRESENT_PULLS):
        side.settle(reference, True)
        timings.call(_name("image present", side=name), lambda: side.pull(reference))
    return timings


def _name(case: str, *, side: str) -> str:
    (pair,) = (pair for pair in IMAGE_PAIRS if pair.name.endswith(case))
    return (pair.floor if side == FLOOR else pair.server)[0]


def _wait_seen(cri: Cri, reference: str, *, present: bool) -> None:
    """Wait until the server's view of the image is up to date."""
    request = pb.ImageStatusRequest(image=pb.ImageSpec(image=reference))
    wait_until(lambda: cri.images.ImageStatus(request).HasField("image") == present, seconds=_SEEN_SECONDS)


def _lists(setup: Setup, docker: DirectDocker, cri: Cri) -> tuple[int, list[float]]:
    api = setup.engine.api
    made = [f"bench/listed-{number}:1" for number in range(PRESENT - len(api.images()))]
    template = Image("", (File("content", b"of all"),))
    try:
        for number, reference in enumerate(made):
            images.load(api, replace(template, reference=reference, config={"Labels": {"number": str(number)}}))
        wait_until(lambda: len(_listed(cri)) == len(api.images()), seconds=_SEEN_SECONDS)
        timings, present = Timings(), len(_listed(cri))
        for _ in range(LISTS):
            timings.call("ListImages", lambda: _listed(cri))
    finally:
        for reference in made:
            docker.delete(f"/images/{reference}?force=1")
    return present, timings.took["ListImages"]


def _listed(cri: Cri) -> list[pb.Image]:
    return list(cri.images.ListImages(pb.ListImagesRequest()).images)
