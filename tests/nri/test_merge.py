from typing import Any

import pytest

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition
from shim.nri.merge import MAX_ITEMS, Adjustments, Updates
from shim.nri.owners import Field

FIRST, SECOND = "10-first", "20-second"


def container(**fields: Any) -> Adjustments:
    return Adjustments(nri.CreateContainerRequest(container=nri.Container(id="c", **fields)))


def answer(**fields: Any) -> nri.CreateContainerResponse:
    return nri.CreateContainerResponse(adjust=nri.ContainerAdjustment(**fields))


def linux(**fields: Any) -> nri.CreateContainerResponse:
    return answer(linux=nri.LinuxContainerAdjustment(**fields))


def mount(destination: str, source: str = "/src") -> nri.Mount:
    return nri.Mount(destination=destination, source=source, type="bind")


def env(key: str, value: str = "") -> nri.KeyValue:
    return nri.KeyValue(key=key, value=value)


def test_later_plugins_see_what_earlier_ones_have_changed() -> None:
    merged = container(env=["A=1", "B=2"], mounts=[mount("/a"), mount("/b")], annotations={"x": "1"}, args=["sh"])

    merged.add(
        answer(
            env=[env("A", "9"), env("C", "3")],
            mounts=[mount("/b", "/other")],
            annotations={"x": "2", "y": "3"},
            args=["run"],
        ),
        plugin=FIRST,
    )

    seen = merged.request.container
    assert list(seen.env) == ["B=2", "A=9", "C=3"]
    assert [(each.destination, each.source) for each in seen.mounts] == [("/a", "/src"), ("/b", "/other")]
    assert (dict(seen.annotations), list(seen.args)) == ({"x": "2", "y": "3"}, ["run"])
    assert list(merged.asked.env) == ["A=1", "B=2"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (answer(env=[env("A")]), "Env A"),
        (answer(mounts=[mount("/a")]), "Mounts /a"),
        (answer(annotations={"k": "v"}), "Annotations k"),
        (answer(args=["x"]), "Args"),
        (answer(rlimits=[nri.POSIXRlimit(type="RLIMIT_CORE")]), "Rlimits RLIMIT_CORE"),
        (answer(CDI_devices=[nri.CDIDevice(name="v/c=d")]), "CdiDevices v/c=d"),
        (linux(devices=[nri.LinuxDevice(path="/dev/x")]), "Devices /dev/x"),
        (linux(namespaces=[nri.LinuxNamespace(type="ipc")]), "Namespace ipc"),
        (linux(sysctl={"a.b": "1"}), "Sysctl a.b"),
        (linux(net_devices={"eth9": nri.LinuxNetDevice(name="net")}), "LinuxNetDevices eth9"),
        (linux(cgroups_path="/x"), "CgroupsPath"),
        (linux(oom_score_adj=nri.OptionalInt(value=0)), "OomScoreAdj"),
        (linux(io_priority=nri.LinuxIOPriority(priority=1)), "IoPriority"),
        (linux(seccomp_policy=nri.LinuxSeccomp(default_action="SCMP_ACT_ALLOW")), "SeccompPolicy"),
        (linux(scheduler=nri.LinuxScheduler(nice=1)), "LinuxSched"),
        (linux(memory_policy=nri.LinuxMemoryPolicy(nodes="0")), "MemoryPolicy"),
        (linux(rdt=nri.LinuxRdt(clos_id=nri.OptionalString(value="gold"))), "RdtClosID"),
        (linux(resources=nri.LinuxResources(unified={"memory.high": "1"})), "CgroupsUnified memory.high"),
        (linux(resources=nri.LinuxResources(pids=nri.LinuxPids(limit=1))), "PidsLimit"),
        (linux(resources=nri.LinuxResources(blockio_class=nri.OptionalString())), "BlockioClass"),
        (
            linux(resources=nri.LinuxResources(memory=nri.LinuxMemory(limit=nri.OptionalInt64(value=0)))),
            "MemLimit",
        ),
        (linux(resources=nri.LinuxResources(cpu=nri.LinuxCPU(cpus="0"))), "CPUSetCPUs"),
        (
            linux(resources=nri.LinuxResources(hugepage_limits=[nri.HugepageLimit(page_size="2MB")])),
            "HugepageLimits 2MB",
        ),
    ],
)
def test_a_conflict_is_an_error_that_names_both_plugins(change: nri.CreateContainerResponse, field: str) -> None:
    merged = container()
    merged.add(change, plugin=FIRST)

    with pytest.raises(FailedPrecondition, match=f'"{SECOND}" and "{FIRST}" both tried to set {field}$'):
        merged.add(change, plugin=SECOND)


def test_a_plugin_may_replace_a_value_by_removing_it_first() -> None:
    merged = container(env=["A=1", "B=2"])
    merged.add(answer(env=[env("A", "first"), env("C", "first")], args=["first"]), plugin=FIRST)

    merged.add(answer(env=[env("-A"), env("A", "second"), env("-C")], args=["", "second"]), plugin=SECOND)

    assert list(merged.request.container.env) == ["B=2", "A=second"]
    assert {each.key: each.value for each in merged.adjust.env} == {"A": "second", "-C": ""}
    assert list(merged.adjust.args) == ["second"]
    assert merged.owners.of("c", Field.Env) == {"A": SECOND}


def test_values_of_the_container_itself_are_removed_too() -> None:
    merged = container(mounts=[mount("/a")], env=["A=1"], annotations={"x": "1"})

    merged.add(answer(mounts=[mount("-/a")], env=[env("-A")], annotations={"-x": ""}), plugin=FIRST)

    assert not merged.request.container.mounts
    assert not merged.request.container.env
    assert not merged.request.container.annotations
    assert [each.destination for each in merged.adjust.mounts] == ["-/a"]
    assert [each.key for each in merged.adjust.env] == ["-A"]
    assert dict(merged.adjust.annotations) == {"-x": ""}


def test_hooks_and_device_rules_of_all_plugins_are_kept() -> None:
    merged = container()
    for plugin in (FIRST, SECOND):
        hooks = nri.Hooks(create_runtime=[nri.Hook(path=f"/bin/{plugin}")])
        rules = nri.LinuxResources(devices=[nri.LinuxDeviceCgroup(allow=True, access="r")])
        change = answer(hooks=hooks, linux=nri.LinuxContainerAdjustment(resources=rules))
        merged.add(change, plugin=plugin)

    assert [hook.path for hook in merged.adjust.hooks.create_runtime] == [f"/bin/{FIRST}", f"/bin/{SECOND}"]
    assert len(merged.adjust.linux.resources.devices) == 2
    assert merged.owners.of("c", Field.OciHooks) == {"": f"{FIRST},{SECOND}"}


def test_an_empty_answer_changes_nothing() -> None:
    merged = container(env=["A=1"])
    before = merged.request.SerializeToString()

    merged.add(nri.CreateContainerResponse(), plugin=FIRST)
    merged.add(answer(hooks=nri.Hooks(), linux=nri.LinuxContainerAdjustment()), plugin=SECOND)

    assert merged.request.SerializeToString() == before
    assert not merged.adjust.ListFields()


def test_a_plugin_can_remove_the_rdt_settings_of_another() -> None:
    merged = container()
    merged.add(linux(rdt=nri.LinuxRdt(clos_id=nri.OptionalString(value="gold"))), plugin=FIRST)

    merged.add(linux(rdt=nri.LinuxRdt(remove=True, clos_id=nri.OptionalString(value="silver"))), plugin=SECOND)

    assert merged.adjust.linux.rdt.clos_id.value == "silver"
    assert merged.adjust.linux.rdt.remove


def test_an_update_of_the_container_in_its_own_create_is_an_error() -> None:
    update = nri.CreateContainerResponse(update=[nri.ContainerUpdate(container_id="c")])
    with pytest.raises(FailedPrecondition, match=f'plugin "{FIRST}" asked for an update of container c'):
        container().add(update, plugin=FIRST)


def shares(container_id: str, value: int, *, ignore_failure: bool = False) -> nri.ContainerUpdate:
    cpu = nri.LinuxCPU(shares=nri.OptionalUInt64(value=value))
    update = nri.LinuxContainerUpdate(resources=nri.LinuxResources(cpu=cpu))
    return nri.ContainerUpdate(container_id=container_id, linux=update, ignore_failure=ignore_failure)


def test_updates_of_one_container_are_merged() -> None:
    updates = Updates()
    updates.add([shares("a", 5), shares("b", 6, ignore_failure=True)], plugin=FIRST)
    resources = nri.LinuxResources(unified={"memory.high": "7"})
    more = nri.ContainerUpdate(container_id="a", linux=nri.LinuxContainerUpdate(resources=resources))
    updates.add([more], plugin=SECOND)

    merged = updates.by_container
    assert merged["a"].linux.resources.cpu.shares.value == 5
    assert merged["a"].linux.resources.unified["memory.high"] == "7"
    assert [merged[name].ignore_failure for name in "ab"] == [False, True]


def test_conflicting_updates_are_an_error_unless_the_second_may_fail() -> None:
    updates = Updates()
    updates.add([shares("a", 5)], plugin=FIRST)

    updates.add([shares("a", 6, ignore_failure=True)], plugin=SECOND)
    assert updates.by_container["a"].linux.resources.cpu.shares.value == 5
    with pytest.raises(FailedPrecondition, match="both tried to set CPUShares"):
        updates.add([shares("a", 6)], plugin=SECOND)


def test_changes_of_one_field_are_limited() -> None:
    merged = container()
    merged.add(answer(annotations={f"k{number}": "" for number in range(MAX_ITEMS)}), plugin=FIRST)
    with pytest.raises(FailedPrecondition, match=f"more than {MAX_ITEMS} of annotations"):
        merged.add(answer(annotations={"one-more": ""}), plugin=SECOND)
