"""Executes a planned run: starts its engine and server, runs its suite, and describes the run."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from integration import nri_plugins
from integration.conformance import registries
from integration.conformance.binaries import CRITEST, EXTRAS, NODE, Binaries
from integration.conformance.cluster import cluster
from integration.conformance.critest import HOSTS_TO_SKIP, OURS_TO_SKIP, run_critest
from integration.conformance.machine import machine_of
from integration.conformance.mapped_users import mapping_users
from integration.conformance.plan import OF_CRITEST, Planned
from integration.conformance.report import Progress
from integration.conformance.results import Case, Run
from integration.conformance.runner import run_churn, run_scenarios
from integration.conformance.target import target
from integration.conftest import Served
from integration.node.isolation import Node, new_home


@dataclass(frozen=True, slots=True)
class Options:
    """Options of every run."""

    date: str
    commit: str
    """Commit of the repository at the start of the run, before results are written into it."""
    only: str = ""
    minutes: float = 60
    note: str = ""
    nri_plugins: Path | None = None
    """Directory of NRI plugins that run during the kubelet's scenarios."""


def run(planned: Planned, *, node: Node, found: Binaries, options: Options) -> Run:
    """Execute a run on a new engine and server."""
    is_critest = planned.suite in OF_CRITEST
    with target(node, planned.engine, settings=registries.SETTINGS if is_critest else {}) as served:
        cases = _CARRY_OUT[planned.suite](planned, served, node=node, found=found, options=options)
        names = CRITEST if is_critest else (*NODE, *EXTRAS)
        return Run(
            suite=planned.suite,
            version=found.programs["critest" if is_critest else "kubelet"].version,
            gates=planned.gates,
            engine=planned.engine,
            docker=served.engine.version,
            date=options.date,
            commit=options.commit,
            machine=machine_of(served.engine.api),
            binaries={name: found.programs[name].version for name in names if name in found.programs},
            note=options.note,
            cases=cases,
        )


def _critest(planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options) -> tuple[Case, ...]:
    with registries.public_registries(node, served.engine.api):
        return _run_critest(planned, served, socket=served.server.socket, found=found, options=options)


def _mapped(planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options) -> tuple[Case, ...]:
    socket, skipped = new_home("mapped").with_suffix(".sock"), OURS_TO_SKIP | HOSTS_TO_SKIP
    with registries.public_registries(node, served.engine.api), mapping_users(served.server.socket, socket):
        return _run_critest(planned, served, socket=socket, found=found, options=options, skipped=skipped)


def _run_critest(
    planned: Planned,
    served: Served,
    *,
    socket: Path,
    found: Binaries,
    options: Options,
    skipped: Mapping[str, str] = OURS_TO_SKIP,
) -> tuple[Case, ...]:
    return run_critest(
        found["critest"],
        socket=socket,
        nri=served.server.nri_socket,
        skipped=skipped,
        home=new_home("critest"),
        only=options.only,
        say=Progress(str(planned)),
    )


def _kubelet(planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options) -> tuple[Case, ...]:
    with (
        _plugins(served, options.nri_plugins),
        cluster(node, served, found, home=new_home("cluster"), gates=planned.gates) as made,
    ):
        return run_scenarios(made, only=options.only, say=Progress(str(planned)))


def _plugins(served: Served, programs: Path | None) -> AbstractContextManager[None]:
    if programs is None:
        return nullcontext()
    home = new_home("nri-plugins")
    home.mkdir(parents=True)
    return nri_plugins.running(served, [programs / name for name in nri_plugins.TOGETHER], log=home / "plugins.log")


def _churn(planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options) -> tuple[Case, ...]:
    with cluster(node, served, found, home=new_home("cluster"), gates=planned.gates) as made:
        return run_churn(made, minutes=options.minutes, say=Progress(str(planned)))


_CARRY_OUT = {"critest": _critest, "user-namespaces": _mapped, "kubelet": _kubelet, "churn": _churn}
