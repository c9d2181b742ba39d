"""One run of the benchmark, from an engine that is not there to a report and an engine that is gone."""

import os
import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import fields
from functools import partial

from integration.bench import figures
from integration.bench.figures import AtOnce, Footprint, Load
from integration.bench.floor import Floor
from integration.bench.images import measure_images
from integration.bench.load import AT_ONCE, remove_pods, start_pods
from integration.bench.machine import docker, footprint, machine
from integration.bench.report import Report
from integration.bench.rounds import Pod, Side, run_rounds
from integration.bench.setup import Setup, prepared, serving
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from integration.node.commands import step
from integration.node.leak_check import NodeSnapshot
from integration.server import Server

POOL = 40
"""Pods that are made at once on either side."""
TURNS = 3
"""How often."""


def measure(engine_name: str, *, rounds: int, pods: int) -> Report:
    """Measure pods alone, then with `pods` others present. NodeError when it cannot be set up."""
    load_before = os.getloadavg()[0]
    with prepared(engine_name) as setup, serving(setup) as (server, cri), Floor(setup) as floor:
        client = PodClient(cri)
        footprints = [footprint(server, when="after start")]
        # Not counted: the first pod makes the bridge and fills caches, on both sides.
        _timed_rounds(setup, floor, client, rounds=1, name="warm-up")
        before = setup.snapshot()
        with step(f"{rounds} rounds, alone"):
            alone = _timed_rounds(setup, floor, client, rounds=rounds, name="alone")
        footprints.append(footprint(server, when="after the rounds alone"))
        beside, load = _under_load(setup, floor, client, server=server, rounds=rounds, pods=pods, footprints=footprints)
        with step(f"{POOL} pods, {AT_ONCE} at a time, on either side in turn"):
            at_once = _at_once(setup, client)
        with step("pulls and lists of images"):
            images = measure_images(setup, cri, server, rounds=rounds)
        phases = [figures.phase(pods=0, timed_rounds=alone), figures.phase(pods=pods, timed_rounds=beside)]
        return Report(
            machine=machine(load_before),
            engine=docker(setup.engine),
            rounds=rounds,
            phases=phases,
            footprints=footprints,
            load=load,
            at_once=at_once,
            images=images,
            left_behind=_left_behind(before, setup.snapshot()),
            bars=[
                *figures.bars(phases, footprints=footprints),
                figures.at_once_bar(at_once),
                *figures.image_bars(images),
            ],
        )


def _under_load(
    setup: Setup,
    floor: Floor,
    client: PodClient,
    *,
    server: Server,
    rounds: int,
    pods: int,
    footprints: list[Footprint],
) -> tuple[tuple[list[Timings], list[Timings]], Load]:
    with step(f"{pods} pods up"):
        made, up_seconds = start_pods([client] * AT_ONCE, size=pods, name="load", logs=str(setup.logs))
    footprints.append(footprint(server, when=figures.present(pods)))
    with step(f"{rounds} rounds, {figures.present(pods)}"):
        timed_rounds = _timed_rounds(setup, floor, client, rounds=rounds, name="beside")
    footprints.append(footprint(server, when=f"after the rounds, {figures.present(pods)}"))
    with step(f"{pods} pods down"):
        down_seconds = remove_pods([client] * AT_ONCE, made)
    footprints.append(footprint(server, when="after the end of all pods"))
    return timed_rounds, Load(pods=pods, at_once=AT_ONCE, up_seconds=up_seconds, down_seconds=down_seconds)


def _at_once(setup: Setup, client: PodClient) -> AtOnce:
    """Time many pods at once on either side; which was first in one turn is second in the next."""
    floors: list[float] = []
    servers: list[float] = []
    with ExitStack() as stack:
        floor = [stack.enter_context(Floor(setup)) for _ in range(AT_ONCE)]
        for turn in range(TURNS):
            both: list[Callable[[], None]] = [
                partial(_time_many, [client] * AT_ONCE, servers, name=f"server-{turn}", logs=str(setup.logs)),
                partial(_time_many, floor, floors, name=f"floor-{turn}", logs=str(setup.logs)),
            ]
            for one in both if turn % 2 else reversed(both):
                one()
    return AtOnce(
        pods=POOL,
        at_once=AT_ONCE,
        floor_seconds=statistics.median(floors),
        server_seconds=statistics.median(servers),
    )


def _time_many(sides: Sequence[Side[Pod]], took: list[float], *, name: str, logs: str) -> None:
    pods, seconds = start_pods(sides, size=POOL, name=name, logs=logs)
    took.append(seconds)
    remove_pods(sides, pods)


def _timed_rounds(
    setup: Setup, floor: Floor, client: PodClient, *, rounds: int, name: str
) -> tuple[list[Timings], list[Timings]]:
    return run_rounds(floor, client, rounds=rounds, name=name, logs=str(setup.logs))


def _left_behind(before: NodeSnapshot, after: NodeSnapshot) -> list[str]:
    return sorted(
        f"{field.name}: {item}"
        for field in fields(NodeSnapshot)
        for item in getattr(after, field.name) - getattr(before, field.name)
    )
