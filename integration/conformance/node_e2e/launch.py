"""Runs a group of Kubernetes' node suite in control groups of its own: the launcher, and the run in there."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from integration.conformance import ginkgo
from integration.conformance.binaries import Binaries, Program
from integration.conformance.machine import machine_of
from integration.conformance.node_e2e.cases import cases_of
from integration.conformance.node_e2e.expected import judged
from integration.conformance.node_e2e.groups import GROUPS, Group
from integration.conformance.node_e2e.machine import RUNTIME_GROUP, Machine, furnished
from integration.conformance.report import Progress
from integration.conformance.results import Case
from integration.conformance.results import Machine as Described
from integration.node.commands import NodeError, tail
from integration.node.isolation import Node, new_home

_END_SECONDS = 300
"""How long the suite may take to end after its timeout."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is ordered: the engine, the group of tests, and the programs."""

    engine: str
    group: str
    only: str
    programs: dict[str, tuple[str, str]]
    """Path and version by name."""


class Done(msgspec.Struct, frozen=True):
    """The result of a run."""

    docker: str
    machine: Described
    cases: tuple[Case, ...]


def launch(*, engine: str, group: str, only: str, found: Binaries) -> Done:
    """Run a group in control groups of its own. Raises NodeError if it leaves no result."""
    home = new_home("order")
    home.mkdir(parents=True)
    programs = {name: (str(program.path), program.version) for name, program in found.programs.items()}
    (home / "order.json").write_bytes(
        msgspec.json.encode(Order(engine=engine, group=group, only=only, programs=programs))
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "integration.node.own_root"),
            *(sys.executable, "-m", "integration.conformance.node_e2e", str(home)),
        ],
        check=False,
    )
    if not (home / "done.json").exists():
        raise NodeError(
            f"run the group {group} of the node suite on engine {engine}: exit status {done.returncode}, no result"
        )
    return msgspec.json.decode((home / "done.json").read_bytes(), type=Done)


def carry_out(node: Node, home: Path) -> None:
    """Carry out the order in a directory, and leave its result there."""
    order = msgspec.json.decode((home / "order.json").read_bytes(), type=Order)
    found = Binaries(None, {name: Program(Path(path), version) for name, (path, version) in order.programs.items()})
    group = next(group for group in GROUPS if group.name == order.group)
    with furnished(node, order.engine, found) as machine:
        say = Progress(f"node-e2e {group.name} on engine {order.engine}")
        cases = _run(machine, found, group, home=home, only=order.only, say=say)
        api = machine.served.engine.api
        done = Done(machine.served.engine.version, machine_of(api), judged(cases, engine=order.engine))
        # Before the machine is cleared: hours of results outlive an error there.
        (home / "done.json").write_bytes(msgspec.json.encode(done))


def _run(
    machine: Machine, found: Binaries, group: Group, *, home: Path, only: str, say: Callable[[str], None]
) -> tuple[Case, ...]:
    report, log = home / "report.json", home / "ginkgo.log"
    # The suite writes beside its program.
    suite = Path(shutil.copy(found["e2e_node.test"], home))
    engine = machine.served.engine
    flags = {
        "k8s-bin-dir": found["kubelet"].parent,
        "report-dir": home / "report",
        "container-runtime-endpoint": f"unix://{machine.served.server.socket}",
        "node-name": "node",
        "kubelet-config-file": machine.kubelet_settings,
        "kubelet-flags": f"--runtime-cgroups={RUNTIME_GROUP}",
        "feature-gates": group.gates,
        "prepull-images": "false",
        "container-runtime-process-name": "dockerd",
        "container-runtime-pid-file": engine.home / "dockerd.pid",
    }
    command = [
        *(str(found["ginkgo"]), "run", "--no-color", "-v", f"--procs={group.at_once}", "--poll-progress-after=0"),
        *(f"--timeout={group.minutes}m", f"--output-dir={home}", f"--json-report={report.name}"),
        f"--label-filter={group.labels}",
        *([f"--focus={only or group.focus}"] if only or group.focus else ()),
        *([f"--skip={group.skip}"] if group.skip else ()),
        *(str(suite), "--", *(f"--{name}={value}" for name, value in flags.items()), *group.flags),
    ]
    (home / "report").mkdir()
    seconds = group.minutes * 60 + _END_SECONDS
    ginkgo.follow(command, log=log, say=say, seconds=seconds, env=machine.environ)
    _keep(home, machine, name=f"{machine.served.engine.name}-{group.name}")
    if not report.exists():
        raise NodeError(f"run e2e_node.test: no report\n{tail(log.read_text())}")
    return cases_of(report.read_bytes())


def _keep(home: Path, machine: Machine, *, name: str) -> None:
    """Copy the logs below the directory that NODE_E2E_LOGS names: files written in isolation end with it."""
    if directory := os.environ.get("NODE_E2E_LOGS"):
        target = Path(directory, name)
        target.mkdir(parents=True, exist_ok=True)
        for path in (home / "ginkgo.log", home / "report.json", *(home / "report").glob("*.log")):
            if path.exists():
                shutil.copy(path, target)
        for daemon in (machine.served.server.daemon, machine.served.engine.daemon):
            shutil.copy(daemon.log, target)
