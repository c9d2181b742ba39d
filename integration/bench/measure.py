"""One run of the benchmark, from an engine that is not there to a report and an engine that is gone."""

import os
from dataclasses import fields

from integration.bench import figures
from integration.bench.figures import Footprint, Load
from integration.bench.floor import Floor
from integration.bench.images import measure_images
from integration.bench.load import AT_ONCE, remove_pods, start_pods
from integration.bench.machine import docker, footprint, machine
from integration.bench.report import Report
from integration.bench.rounds import run_rounds
from integration.bench.setup import Setup, prepared, serving
from integration.bench.timed_pod import PodClient
from integration.bench.timings import Timings
from integration.node.commands import step
from integration.node.leak_check import NodeSnapshot
from integration.server import Server


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
            images=images,
            left_behind=_left_behind(before, setup.snapshot()),
            bars=[*figures.bars(phases, footprints=footprints), *figures.image_bars(images)],
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
        made, up_seconds = start_pods(client, size=pods, logs=str(setup.logs))
    footprints.append(footprint(server, when=figures.present(pods)))
    with step(f"{rounds} rounds, {figures.present(pods)}"):
        timed_rounds = _timed_rounds(setup, floor, client, rounds=rounds, name="beside")
    footprints.append(footprint(server, when=f"after the rounds, {figures.present(pods)}"))
    with step(f"{pods} pods down"):
        down_seconds = remove_pods(client, made)
    footprints.append(footprint(server, when="after the end of all pods"))
    return timed_rounds, Load(pods=pods, at_once=AT_ONCE, up_seconds=up_seconds, down_seconds=down_seconds)


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
