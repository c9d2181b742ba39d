"""Executes a planned run: starts its engine and server, runs its suite, and describes the run."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from integration import nri_plugins
from integration.conformance import registries
from integration.conformance.binaries import CRITEST, EXTRAS, NODE, NODE_E2E, Binaries
from integration.conformance.cluster import cluster
from integration.conformance.critest import HOSTS_TO_SKIP, OURS_TO_SKIP, Critest
from integration.conformance.machine import machine_of
from integration.conformance.mapped_users import mapping_users
from integration.conformance.node_e2e.launch import launch
from integration.conformance.parts import Parts, run_in_parts
from integration.conformance.plan import OF_CRITEST, Planned, program_of
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
    parts: Parts | None = None
    """Where critest resumes; None runs all of it at once."""


_Describe = Callable[[tuple[Case, ...]], Run]


def run(planned: Planned, *, node: Node, found: Binaries, options: Options) -> Run:
    """Execute a run on a new engine and server."""
    if planned.suite == "node-e2e":
        return _node_e2e(planned, found=found, options=options)
    is_critest = planned.suite in OF_CRITEST
    with target(node, planned.engine, settings=registries.SETTINGS if is_critest else {}) as served:

        def describe(cases: tuple[Case, ...]) -> Run:
            names = CRITEST if is_critest else (*NODE, *EXTRAS)
            return Run(
                suite=planned.suite,
                version=found.programs[program_of(planned.suite)].version,
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

        carry_out = _CARRY_OUT[planned.suite]
        return carry_out(planned, served, node=node, found=found, options=options, describe=describe)


def _node_e2e(planned: Planned, *, found: Binaries, options: Options) -> Run:
    done = launch(engine=planned.engine, group=planned.group, only=options.only, found=found)
    versions = {name: found.programs[name].version for name in NODE_E2E}
    return Run(
        suite=planned.suite,
        group=planned.group,
        version=found.programs[program_of(planned.suite)].version,
        gates=planned.gates,
        engine=planned.engine,
        docker=done.docker,
        date=options.date,
        commit=options.commit,
        machine=done.machine,
        binaries={name: version for name, version in versions.items() if version},
        note=options.note,
        cases=done.cases,
    )


def _critest(
    planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options, describe: _Describe
) -> Run:
    critest = Critest(
        program=found["critest"], socket=served.server.socket, nri=served.server.nri_socket, skipped=OURS_TO_SKIP
    )
    with registries.public_registries(node, served.engine.api):
        return _run_critest(critest, title=str(planned), options=options, describe=describe)


def _mapped(
    planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options, describe: _Describe
) -> Run:
    critest = Critest(
        program=found["critest"],
        socket=new_home("mapped").with_suffix(".sock"),
        nri=served.server.nri_socket,
        skipped=OURS_TO_SKIP | HOSTS_TO_SKIP,
    )
    with (
        registries.public_registries(node, served.engine.api),
        mapping_users(served.server.socket, critest.socket),
    ):
        return _run_critest(critest, title=str(planned), options=options, describe=describe)


def _run_critest(critest: Critest, *, title: str, options: Options, describe: _Describe) -> Run:
    say = Progress(title)

    def run_focused(focus: Sequence[str]) -> tuple[Case, ...]:
        return critest.run(new_home("critest"), focus=focus, say=say)

    if options.parts is None:
        return describe(run_focused([options.only] if options.only else []))
    names = [name for name in critest.names(new_home("critest")) if re.search(options.only, name)]
    return run_in_parts(names, parts=options.parts, describe=describe, run=run_focused)


def _kubelet(
    planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options, describe: _Describe
) -> Run:
    with (
        _plugins(served, options.nri_plugins),
        cluster(node, served, found, home=new_home("cluster"), gates=planned.gates) as made,
    ):
        return describe(run_scenarios(made, only=options.only, say=Progress(str(planned))))


def _plugins(served: Served, programs: Path | None) -> AbstractContextManager[None]:
    if programs is None:
        return nullcontext()
    home = new_home("nri-plugins")
    home.mkdir(parents=True)
    return nri_plugins.running(served, [programs / name for name in nri_plugins.TOGETHER], log=home / "plugins.log")


def _churn(
    planned: Planned, served: Served, *, node: Node, found: Binaries, options: Options, describe: _Describe
) -> Run:
    with cluster(node, served, found, home=new_home("cluster"), gates=planned.gates) as made:
        return describe(run_churn(made, minutes=options.minutes, say=Progress(str(planned))))


_CARRY_OUT = {"critest": _critest, "user-namespaces": _mapped, "kubelet": _kubelet, "churn": _churn}
