"""A run of the benchmark, from the start of an engine to the report and the removal of the engine."""

import os
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any

from integration.bench import figures
from integration.bench.direct_cri import direct_cri
from integration.bench.figures import FLOOR, SERVER, AtOnce, Footprint, Load
from integration.bench.floor import Floor
from integration.bench.images import measure_images
from integration.bench.load import AT_ONCE, remove_pods, start_pods
from integration.bench.machine import docker, footprint, machine
from integration.bench.report import Other, Report
from integration.bench.rivals import running
from integration.bench.rounds import Side, rotated, run_rounds
from integration.bench.setup import Setup, prepared, serving
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from integration.node.commands import step
from integration.node.leak_check import NodeSnapshot
from integration.server import Server

POOL = 40
"""Pods that are started on each side."""
TURNS = 3
"""Turns of these starts."""


def measure(engine_name: str, *, rounds: int, pods: int, beside: Sequence[Path] = ()) -> Report:
    """Measure pods alone, then with `pods` others present. Raises NodeError if setup fails.

    The servers of the programs `beside` take part in all measurements, except in measurements with other pods.
    """
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        setup = stack.enter_context(prepared(engine_name))
        server, cri = stack.enter_context(serving(setup))
        floor = stack.enter_context(Floor(setup))
        others = [stack.enter_context(running(setup, one, number=number)) for number, one in enumerate(beside)]
        sockets = {SERVER: server.socket} | {other.name: other.socket for other in others}
        # Several clients, since each has one connection for one call at a time.
        clients = {
            side: [PodClient(stack.enter_context(direct_cri(socket))) for _ in range(AT_ONCE)]
            for side, socket in sockets.items()
        }
        both: dict[str, Side[Any]] = {FLOOR: floor, SERVER: clients[SERVER][0]}
        all_sides: dict[str, Side[Any]] = {FLOOR: floor, **{side: each[0] for side, each in clients.items()}}
        logs = str(setup.logs)
        footprints = [footprint(server, when="after start")]
        # Not counted: the first pod creates the bridge and fills caches, on all sides.
        run_rounds(all_sides, rounds=1, name="warm-up", logs=logs)
        before = setup.snapshot()
        with step(f"{rounds} rounds, alone"):
            alone = run_rounds(all_sides, rounds=rounds, name="alone", logs=logs)
        footprints.append(footprint(server, when="after the rounds alone"))
        present, load = _under_load(
            both, clients[SERVER], logs=logs, server=server, rounds=rounds, pods=pods, footprints=footprints
        )
        with step(f"{POOL} pods, {AT_ONCE} at a time, on each side in turn"):
            seconds = _at_once(setup, clients)
        at_once = AtOnce(pods=POOL, at_once=AT_ONCE, floor_seconds=seconds[FLOOR], server_seconds=seconds[SERVER])
        with step("pulls and lists of images"):
            images, pulls = measure_images(setup, cri, server, others=others, rounds=rounds)
        phases = [
            figures.phase(pods=number, timed_rounds=(timed[FLOOR], timed[SERVER]))
            for number, timed in ((0, alone), (pods, present))
        ]
        return Report(
            machine=machine(load_before),
            engine=docker(setup.engine),
            rounds=rounds,
            others=[Other(name=other.name, version=other.version) for other in others],
            phases=phases,
            footprints=footprints,
            load=load,
            at_once=at_once,
            images=images,
            compared=[
                *figures.compared(figures.COMPARED, alone),
                figures.compared_row(figures.many(at_once), {side: 1000 * took for side, took in seconds.items()}),
                *figures.compared(figures.IMAGE_PAIRS, pulls),
            ],
            left_behind=_left_behind(before, setup.snapshot()),
            bars=[
                *figures.bars(phases, footprints=footprints),
                figures.at_once_bar(at_once),
                *figures.image_bars(images),
            ],
        )


def _under_load(
    both: Mapping[str, Side[Any]],
    clients: Sequence[PodClient],
    *,
    logs: str,
    server: Server,
    rounds: int,
    pods: int,
    footprints: list[Footprint],
) -> tuple[dict[str, list[Timings]], Load]:
    with step(f"{pods} pods up"):
        made, up_seconds = start_pods(clients, size=pods, name="load", logs=logs)
    footprints.append(footprint(server, when=figures.present(pods)))
    with step(f"{rounds} rounds, {figures.present(pods)}"):
        timed_rounds = run_rounds(both, rounds=rounds, name="beside", logs=logs)
    footprints.append(footprint(server, when=f"after the rounds, {figures.present(pods)}"))
    with step(f"{pods} pods down"):
        down_seconds = remove_pods(clients, made)
    footprints.append(footprint(server, when="after the end of all pods"))
    return timed_rounds, Load(pods=pods, at_once=AT_ONCE, up_seconds=up_seconds, down_seconds=down_seconds)


def _at_once(setup: Setup, clients: Mapping[str, Sequence[Side[Any]]]) -> dict[str, float]:
    """Time many pods at once on each side; the side that is first changes each turn. Returns medians in seconds."""
    with ExitStack() as stack:
        many = {FLOOR: [stack.enter_context(Floor(setup)) for _ in range(AT_ONCE)], **clients}
        took: dict[str, list[float]] = {side: [] for side in many}
        for turn in range(TURNS):
            for side in rotated(list(many), turn):
                name, logs = f"{side}-{turn}", str(setup.logs)
                pods, seconds = start_pods(many[side], size=POOL, name=name, logs=logs)
                took[side].append(seconds)
                remove_pods(many[side], pods)
    return {side: statistics.median(seconds) for side, seconds in took.items()}


def _left_behind(before: NodeSnapshot, after: NodeSnapshot) -> list[str]:
    return sorted(
        f"{field.name}: {item}"
        for field in fields(NodeSnapshot)
        for item in getattr(after, field.name) - getattr(before, field.name)
    )
