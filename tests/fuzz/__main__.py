"""python -m tests.fuzz: fuzzers of all inputs from other programs."""

import argparse
import logging
import sys
import time
from pathlib import Path

import structlog

from tests.fuzz.runner import Finding, Outcome, fuzz, replay, save
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS

SAVED = Path("build/fuzz")


def main() -> int:
    """Run the fuzzers one after another; return 1 if one has a finding."""
    given = _arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    targets = [target for target in TARGETS if not given.only or any(part in target.name for part in given.only)]
    if given.replay:
        for target in targets:
            print(f"{target.name}: {given.replay}")
            replay(target, given.replay.read_bytes())
        return 0
    found = [_run(target, seed=given.seed, seconds=given.seconds) for target in targets]
    print(f"{len(found)} fuzzers, {sum(found)} with findings, seed {given.seed}")
    return int(any(found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each fuzzer")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all that is left to chance")
    parser.add_argument("--only", action="append", metavar="NAME", help="a fuzzer by a part of its name; repeatable")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run this input alone, mostly with --only")
    given = parser.parse_args()
    for part in given.only or ():
        if not any(part in target.name for target in TARGETS):
            parser.error(f"--only {part}: no fuzzer has this in its name: {', '.join(each.name for each in TARGETS)}")
    return given


def _run(target: Target, *, seed: int, seconds: float) -> bool:
    began = last = time.monotonic()

    def progress(done: Outcome) -> None:
        nonlocal last
        if time.monotonic() - last > 5:
            last = time.monotonic()
            print(f"  {target.name}: {last - began:.0f} s, {done.inputs} inputs, {done.rss[-1] >> 20} MiB", flush=True)

    try:
        done = fuzz(target, seed=seed, seconds=seconds, progress=progress)
    except Finding as finding:
        save(finding, SAVED)
        print(f"FOUND {finding}", file=sys.stderr, flush=True)
        return True
    memory = f"{done.rss[0] >> 20} to {done.rss[-1] >> 20} MiB" if done.rss else "memory not compared"
    left = f"{len(done.left.threads)} threads and {len(done.left.descriptors)} descriptors left"
    print(f"ok {target.name}: {done.inputs} inputs, {done.refused} refused, {memory}, {left}", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
