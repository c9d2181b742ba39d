"""One run of the benchmark, from an engine that is not there to a report and an engine that is gone."""

import os
from dataclasses import fields

from integration.bench import figures
from integration.bench.crowd import AT_ONCE, crowd_down, crowd_up
from integration.bench.figures import Crowd, Footprint
from integration.bench.floor import Floor
from integration.bench.images import measure_images
from integration.bench.laps import Lap
from integration.bench.machine import docker, footprint, machine
from integration.bench.report import Report
from integration.bench.rounds import run_rounds
from integration.bench.served import Served
from integration.bench.setup import Bed, prepared, serving
from integration.node.commands import step
from integration.node.traces import Traces
from integration.server import Server


def measure(engine_name: str, *, rounds: int, pods: int) -> Report:
    """Measure pods alone, then with `pods` others present. NodeError when it cannot be set up."""
    load_before = os.getloadavg()[0]
    with prepared(engine_name) as bed, serving(bed) as (server, cri), Floor(bed) as floor:
        served = Served(cri)
        footprints = [footprint(server, when="after start")]
        # Not counted: the first pod makes the bridge and fills caches, on both sides.
        _laps(bed, floor, served, rounds=1, name="warm-up")
        before = bed.traces()
        with step(f"{rounds} rounds, alone"):
            alone = _laps(bed, floor, served, rounds=rounds, name="alone")
        footprints.append(footprint(server, when="after the rounds alone"))
        beside, crowd = _crowded(bed, floor, served, server=server, rounds=rounds, pods=pods, footprints=footprints)
        with step("pulls and lists of images"):
            images = measure_images(bed, cri, server, rounds=rounds)
        phases = [figures.phase(pods=0, laps=alone), figures.phase(pods=pods, laps=beside)]
        return Report(
            machine=machine(load_before),
            engine=docker(bed.engine),
            rounds=rounds,
            phases=phases,
            footprints=footprints,
            crowd=crowd,
            images=images,
            left_behind=_left_behind(before, bed.traces()),
            bars=[*figures.bars(phases, footprints=footprints), *figures.image_bars(images)],
        )


def _crowded(
    bed: Bed,
    floor: Floor,
    served: Served,
    *,
    server: Server,
    rounds: int,
    pods: int,
    footprints: list[Footprint],
) -> tuple[tuple[list[Lap], list[Lap]], Crowd]:
    with step(f"{pods} pods up"):
        made, up_seconds = crowd_up(served, size=pods, logs=str(bed.logs))
    footprints.append(footprint(server, when=figures.present(pods)))
    with step(f"{rounds} rounds, {figures.present(pods)}"):
        laps = _laps(bed, floor, served, rounds=rounds, name="beside")
    footprints.append(footprint(server, when=f"after the rounds, {figures.present(pods)}"))
    with step(f"{pods} pods down"):
        down_seconds = crowd_down(served, made)
    footprints.append(footprint(server, when="after the end of all pods"))
    return laps, Crowd(pods=pods, at_once=AT_ONCE, up_seconds=up_seconds, down_seconds=down_seconds)


def _laps(bed: Bed, floor: Floor, served: Served, *, rounds: int, name: str) -> tuple[list[Lap], list[Lap]]:
    return run_rounds(floor, served, rounds=rounds, name=name, logs=str(bed.logs))


def _left_behind(before: Traces, after: Traces) -> list[str]:
    return sorted(
        f"{field.name}: {item}"
        for field in fields(Traces)
        for item in getattr(after, field.name) - getattr(before, field.name)
    )
