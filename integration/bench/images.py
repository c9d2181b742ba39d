"""Images: pulls through the server beside Docker's own, and the list of a node that has many."""

import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

from integration.bench import figures
from integration.bench.direct_cri import DirectCri
from integration.bench.figures import IMAGE_PAIRS, Images
from integration.bench.floor import DirectDocker
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
"""Images on the node for the list: more than the kubelet's garbage collection leaves on most."""
LISTS = 50
_PRESENT_PULLS = 3
"""Of an image that is there, in a round; their median counts: so short a pull is lost in the noise of the machine."""

_MADE = "bench/made:1"
_BYTES = 1 << 20
"""Of the image that is pulled; noise, so that it is as large on its way."""
_SEEN_SECONDS = 60.0

Pull = Callable[[str], object]


def measure_images(setup: Setup, cri: Cri, server: Server, *, rounds: int) -> Images:
    """Pull `rounds` times on both sides, then list `PRESENT` images; all images of its own are removed."""
    node = this_node()
    if node is None:
        raise NodeError("the benchmark runs in isolation only: make bench")
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=setup.home / "registry")
    registry.start()
    api = setup.engine.api
    docker = DirectDocker(setup.engine.socket, version=api.api_version)
    with closing(docker):
        try:
            images.load(api, Image(_MADE, (File("noise", os.urandom(_BYTES)),)))
            reference = registry.push(api, _MADE, name="bench/app:1")
            api.remove_image(_MADE)
            with DirectCri(server.socket) as direct:
                timed_rounds = _pulls(docker, direct, server, cri, reference=reference, rounds=rounds)
            docker.delete(f"/images/{reference}?force=1")
        finally:
            registry.stop()
        present, lists = _lists(setup, docker, cri)
    return figures.images(timed_rounds, present=present, lists=lists)


def _pulls(
    docker: DirectDocker, direct: DirectCri, server: Server, cri: Cri, *, reference: str, rounds: int
) -> tuple[list[Timings], list[Timings]]:
    """Pull on both sides in turn, each time first an image that is not here, then the same again.

    Each pull begins when the server is idle. It refreshes the images a moment after each change, also of Docker's own
    doing; one side's pull must not run beside the refresh that follows the pull before it. And each side has a client
    without a library, or the pull through the server would be charged with what a library takes in the client.
    """
    sides: list[tuple[Pull, Callable[[str], str], list[Timings]]] = [
        (docker.pull, lambda case: _name(case, floor=True), []),
        (direct.pull, lambda case: _name(case, floor=False), []),
    ]
    docker.pull(reference)  # not counted: the first one fills caches
    for number in range(rounds):
        for pull, name, timed_rounds in sides if number % 2 == 0 else reversed(sides):
            timings = Timings()
            docker.delete(f"/images/{reference}?force=1")
            _wait_seen(cri, reference, present=False)
            server.wait_idle()
            timings.call(name("new image"), lambda pull=pull: pull(reference))  # type: ignore[misc]  # mypy: default of a lambda
            _wait_seen(cri, reference, present=True)
            for _ in range(_PRESENT_PULLS):
                server.wait_idle()
                timings.call(name("image present"), lambda pull=pull: pull(reference))  # type: ignore[misc]
            timed_rounds.append(timings)
    return sides[0][2], sides[1][2]


def _name(case: str, *, floor: bool) -> str:
    (pair,) = (pair for pair in IMAGE_PAIRS if pair.name.endswith(case))
    return (pair.floor if floor else pair.server)[0]


def _wait_seen(cri: Cri, reference: str, *, present: bool) -> None:
    """Wait until the server knows."""
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
