"""A node that builds images: `python -m integration.bench.building`, in isolation.

On a node with many images that people and CI jobs also use: the time of each image RPC compared to Docker's call, and
the cost of ten `docker tag` a second for Docker, with and without the server.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import docker
import grpc

from integration.bench.setup import ENGINES, Setup, prepared, serving
from integration.bench.streaming import Bar, print_bars
from integration.cri import Cri
from integration.node import images
from integration.node.commands import step
from integration.node.engine import Engine
from integration.node.isolation import this_node
from integration.node.registry import Registry
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

FACTOR, MORE_MS = 1.2, 50.0
"""A call may take FACTOR times as long as Docker's call, plus MORE_MS."""
TAGS_FACTOR = 1.1
"""Bound on Docker's processor time for tags by hand, relative to the time without the server."""
_PERIOD = 0.1
"""Seconds between two tags by hand."""
_AT_ONCE = 16
_EACH = 7
_LIST_SECONDS = 120.0

Calls = Sequence[Callable[[], object]]


def measure(engine_name: str, *, count: int, seconds: float) -> list[Bar]:
    """Measure with `count` images; tag for `seconds` with the server and as long without it."""
    names = [f"ci/build{number}:latest" for number in range(count)]
    with prepared(engine_name) as setup:
        with step(f"loading {count} images"):
            images.load_many(setup.engine.api, names)
        with step("tags by hand, without the server"):
            without = _tags(setup.engine, seconds=seconds)
        began = time.perf_counter()
        with serving(setup) as (_, cri):
            started = Bar("start of the server", time.perf_counter() - began, "s", 5, at_most=True)
            wait_until(lambda: _listed(cri, setup), seconds=_LIST_SECONDS)
            bars = [started, *_calls(setup.engine.api, cri, names), *_pulls(setup, cri)]
            with step("tags by hand, with the server"):
                tags = _tags(setup.engine, seconds=seconds)
        with step("tags by hand, without the server again"):
            again = _tags(setup.engine, seconds=seconds)
    # Docker's cost drifts, for example with the size of its heap.
    ratio = tags / statistics.mean((without, again))
    return [*bars, Bar("tags by hand: Docker's processor time", ratio, "times", TAGS_FACTOR, at_most=True)]


def _listed(cri: Cri, setup: Setup) -> bool:
    """Whether the server has its first list of images, which ImageFsInfo needs."""
    try:
        return len(cri.images.ListImages(pb.ListImagesRequest()).images) >= len(setup.engine.api.images())
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False


def _calls(api: docker.APIClient, cri: Cri, names: Sequence[str]) -> list[Bar]:
    left = iter(names)

    def take(count: int) -> list[str]:
        return [next(left) for _ in range(count)]

    def ids(count: int) -> list[str]:
        return [str(images.image_id(api, name)) for name in take(count)]

    def bar(
        what: str, server: Callable[[str], object], own: Callable[[str], object], names: Callable[[], list[str]]
    ) -> Bar:
        return _bar(what, [partial(server, name) for name in names()], [partial(own, name) for name in names()])

    status, remove = partial(_status, cri), partial(_remove, cri)
    return [
        _bar("ListImages", [lambda: cri.images.ListImages(pb.ListImagesRequest())] * 3, [api.images]),
        bar("ImageStatus, for the first time", status, api.inspect_image, lambda: take(_EACH)),
        bar("ImageStatus, again", status, api.inspect_image, lambda: [names[0]] * _EACH),
        bar("ImageStatus of a missing image", status, partial(images.image_id, api), lambda: ["ci/none:1"] * _EACH),
        _bar("ImageFsInfo", [lambda: cri.images.ImageFsInfo(pb.ImageFsInfoRequest())] * _EACH, [api.info] * _EACH),
        bar("RemoveImage by name", remove, api.remove_image, lambda: take(_EACH)),
        bar("RemoveImage by id, as a kubelet collects images", remove, api.remove_image, lambda: ids(3 * _EACH)),
        *(
            _bar(
                f"RemoveImage {how}, {_AT_ONCE} at once",
                [partial(_at_once, remove, chosen(_AT_ONCE))],
                [partial(_at_once, api.remove_image, chosen(_AT_ONCE))],
            )
            for how, chosen in (("by name", take), ("by id", ids))
        ),
    ]


def _pulls(setup: Setup, cri: Cri) -> list[Bar]:
    api, node = setup.engine.api, this_node()
    assert node is not None  # `prepared` has checked that
    registry = Registry(node.tools.root / "usr/bin/docker-registry", home=setup.home / "registry")
    registry.start()
    try:
        made = [f"bench/pulled{number}:1" for number in range(2 * _EACH)]
        images.load_many(api, made)
        new = [registry.push(api, name, name=name) for name in made]
        tags = [registry.push(api, made[number % 2], name=f"{made[number % 2][:-2]}:t{number}") for number in range(10)]
        for name in made:
            api.remove_image(name)
        pull = partial(_pull, cri)
        return [
            _bar(
                f"PullImage, {what}",
                [partial(pull, name) for name in names[::2]],
                [partial(api.pull, name) for name in names[1::2]],
            )
            for what, names in (("new image", new), ("image present", new), ("new tag", tags))
        ]
    finally:
        registry.stop()


def _bar(what: str, server: Calls, own: Calls) -> Bar:
    took, floor = _median_ms(server), _median_ms(own)
    limit = round(FACTOR * floor + MORE_MS, 1)
    return Bar(f"{what} (Docker {floor:.1f} ms)", took, "ms", limit, at_most=True)


def _median_ms(calls: Calls) -> float:
    took = []
    for call in calls:
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return 1000 * statistics.median(took)


def _at_once(call: Callable[[str], object], names: Sequence[str]) -> None:
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(call, names))


def _status(cri: Cri, name: str) -> None:
    cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=name)))


def _remove(cri: Cri, name: str) -> None:
    cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=name)))


def _pull(cri: Cri, name: str) -> None:
    cri.images.PullImage(pb.PullImageRequest(image=pb.ImageSpec(image=name)))


def _tags(engine: Engine, *, seconds: float) -> float:
    """Tag an image under five names in turn; return Docker's processor time for each tag, in seconds."""
    before, began, count = _processor_seconds(engine), time.monotonic(), 0
    while time.monotonic() - began < seconds:
        engine.api.tag(images.BUSYBOX, "ci/loop", str(count % 5))
        count += 1
        time.sleep(max(0.0, began + count * _PERIOD - time.monotonic()))
    return (_processor_seconds(engine) - before) / count


def _processor_seconds(engine: Engine) -> float:
    """Return the processor time of dockerd and its containerd so far, in seconds with a resolution of 1 ns."""
    daemon = engine.daemon.pid
    children = Path(f"/proc/{daemon}/task/{daemon}/children")
    pids = [
        daemon,
        *(int(pid) for path in children.parent.parent.glob("*/children") for pid in path.read_text().split()),
    ]
    tasks = [task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m integration.bench.building", description=__doc__)
    engines = (*ENGINES, "28-containerd", "29-containerd")
    parser.add_argument("--engine", choices=engines, default=ENGINES[-1], help="engine to measure on (%(default)s)")
    parser.add_argument("--images", type=int, default=1000, help="number of images on the node (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of tags by hand (%(default)s)")
    arguments = parser.parse_args()
    return print_bars(partial(measure, arguments.engine, count=arguments.images, seconds=arguments.seconds))


if __name__ == "__main__":
    sys.exit(main())
