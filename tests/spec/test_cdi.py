import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, Unsupported
from shim.engine.answers import DiscoveredDevice, EngineInfo
from shim.runtime import Runtime
from shim.spec.cdi import check_cdi_devices, docker_device_requests
from tests.fakes.engine import FakeEngine
from tests.pods import created, ready_pod


def cdi(*names: str) -> list[pb.CDIDevice]:
    return [pb.CDIDevice(name=name) for name in names]


@pytest.fixture
def plugged(engine: FakeEngine) -> FakeEngine:
    """The engine, with a CDI device and a device of another kind."""
    engine.engine_info = EngineInfo(
        cdi_spec_dirs=["/etc/cdi", "/run/cdi"],
        discovered_devices=[
            DiscoveredDevice(source="cdi", id="v.com/gpu=0"),
            DiscoveredDevice(source="other", id="v.com/gpu=1"),
        ],
    )
    return engine


def test_devices_are_asked_for_by_name_each_once() -> None:
    assert docker_device_requests(cdi("v.com/gpu=0", "v.com/gpu=1", "v.com/gpu=0")) == [
        {"Driver": "cdi", "DeviceIDs": ["v.com/gpu=0", "v.com/gpu=1"]}
    ]
    assert docker_device_requests([]) == []


def test_known_devices_pass(rt: Runtime, plugged: FakeEngine) -> None:
    check_cdi_devices(cdi("v.com/gpu=0", "v.com/gpu=0"), facts=rt.facts, api_version=rt.engine.api_version)
    check_cdi_devices([], facts=rt.facts, api_version=rt.engine.api_version)


@pytest.mark.parametrize("name", ["v.com/gpu=1", "v.com/gpu=2"], ids=["of another driver", "of none"])
def test_an_unknown_device_is_refused_with_its_first_index(rt: Runtime, plugged: FakeEngine, name: str) -> None:
    with pytest.raises(FailedPrecondition) as refusal:
        check_cdi_devices(cdi("v.com/gpu=0", name, name), facts=rt.facts, api_version=rt.engine.api_version)
    assert str(refusal.value) == (f"config.CDI_devices[1].name: no specification in /etc/cdi, /run/cdi has {name!r}")


def test_create_asks_docker_for_devices_each_time(rt: Runtime, plugged: FakeEngine) -> None:
    sandbox = ready_pod(rt)
    created(rt, sandbox, CDI_devices=cdi("v.com/gpu=0"))
    plugged.engine_info = EngineInfo(cdi_spec_dirs=["/etc/cdi"], discovered_devices=None)
    with pytest.raises(FailedPrecondition, match=r"config\.CDI_devices\[0\]\.name"):
        created(rt, sandbox, CDI_devices=cdi("v.com/gpu=0"))


def test_an_engine_that_lists_no_devices_decides_itself(rt: Runtime, plugged: FakeEngine) -> None:
    plugged.version = (1, 49)
    check_cdi_devices(cdi("v.com/gpu=7"), facts=rt.facts, api_version=rt.engine.api_version)


@pytest.mark.parametrize("directories", [None, []])
def test_a_daemon_with_cdi_switched_off_is_refused(
    rt: Runtime, engine: FakeEngine, directories: list[str] | None
) -> None:
    engine.engine_info = EngineInfo(cdi_spec_dirs=directories)
    with pytest.raises(FailedPrecondition, match=r"config\.CDI_devices: CDI is switched off in Docker"):
        check_cdi_devices(cdi("v.com/gpu=0"), facts=rt.facts, api_version=rt.engine.api_version)


def test_an_old_engine_without_cdi_is_refused(rt: Runtime, plugged: FakeEngine) -> None:
    plugged.version = (1, 43)
    with pytest.raises(Unsupported, match=r"^config\.CDI_devices: needs Docker Engine 25\.0 .* speaks 1\.43$"):
        check_cdi_devices(cdi("v.com/gpu=0"), facts=rt.facts, api_version=rt.engine.api_version)
