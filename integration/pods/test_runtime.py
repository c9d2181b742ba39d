"""Version, Status and RuntimeConfig of the runtime."""

from integration.conftest import Served
from integration.cri import Cri
from shim.api.v1 import api_pb2 as pb


def test_the_version_is_dockers(cri: Cri, served: Served) -> None:
    version = cri.runtime.Version(pb.VersionRequest())

    assert (version.runtime_name, version.runtime_api_version) == ("docker", "v1")
    assert version.runtime_version == served.engine.version


def test_the_cgroup_driver_is_dockers(cri: Cri, served: Served) -> None:
    """The tests' engines set it in exec-opts."""
    driver = cri.runtime.RuntimeConfig(pb.RuntimeConfigRequest()).linux.cgroup_driver

    assert pb.CgroupDriver.Name(driver).lower() == served.engine.cgroup_driver


def test_a_node_with_docker_and_a_network_is_ready(cri: Cri) -> None:
    answer = cri.runtime.Status(pb.StatusRequest())

    assert {c.type: (c.status, c.reason) for c in answer.status.conditions} == {
        "RuntimeReady": (True, ""),
        "NetworkReady": (True, ""),
    }
    assert {"", "runc"} <= {handler.name for handler in answer.runtime_handlers}
    assert not answer.info


def test_a_verbose_status_shows_the_settings(cri: Cri, served: Served) -> None:
    info = cri.runtime.Status(pb.StatusRequest(verbose=True)).info["config"]

    assert str(served.dirs.cni_conf) in info
    assert str(served.engine.socket) in info
