import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cni.template import FILE
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.node.cni_conf import TEMPLATE_LIMIT, prepare_cni_conf, write_cni_conf
from shim.node.update_runtime_config import update_runtime_config
from shim.runtime import Runtime

TEMPLATE = '{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "x": {{.PodCIDRRanges}}}]}'


@pytest.fixture
def templated(config: Config, tmp_path: Path) -> Config:
    path = tmp_path / "template"
    path.write_text(TEMPLATE)
    return msgspec.structs.replace(config, cni_conf_template=str(path))


def ranges_in(config: Config) -> object:
    return json.loads((config.cni_conf_dir / FILE).read_text())["plugins"][0]["x"]


def test_the_configuration_has_the_kubelets_pod_ranges(rt: Runtime, templated: Config) -> None:
    rt = replace(rt, config=templated)

    update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.1.0.0/24"))
    assert ranges_in(templated) == [[{"subnet": "10.1.0.0/24"}]]
    update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.2.0.0/24,fd00::/64"))

    assert ranges_in(templated) == [[{"subnet": "10.2.0.0/24"}], [{"subnet": "fd00::/64"}]]
    assert [path.name for path in templated.cni_conf_dir.iterdir()] == [FILE]


def test_a_lost_configuration_is_rewritten_with_the_next_update(rt: Runtime, templated: Config) -> None:
    rt = replace(rt, config=templated)
    update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.1.0.0/24"))
    (templated.cni_conf_dir / FILE).unlink()

    update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.1.0.0/24"))

    assert ranges_in(templated) == [[{"subnet": "10.1.0.0/24"}]]


def test_an_unchanged_configuration_is_not_rewritten(templated: Config) -> None:
    write_cni_conf(templated, ranges=("10.1.0.0/24",))
    before = (templated.cni_conf_dir / FILE).stat().st_ino

    write_cni_conf(templated, ranges=("10.1.0.0/24",))

    assert (templated.cni_conf_dir / FILE).stat().st_ino == before


def test_a_start_writes_the_configuration_of_the_known_ranges(templated: Config) -> None:
    prepare_cni_conf(templated, ranges=("10.1.0.0/24",))

    assert ranges_in(templated) == [[{"subnet": "10.1.0.0/24"}]]


def test_a_start_without_ranges_removes_the_configuration(templated: Config) -> None:
    prepare_cni_conf(templated, ranges=("10.1.0.0/24",))
    prepare_cni_conf(templated, ranges=())

    assert list(templated.cni_conf_dir.iterdir()) == []


def test_no_configuration_is_written_without_a_template(rt: Runtime) -> None:
    update_runtime_config(rt, network_config=pb.NetworkConfig(pod_cidr="10.1.0.0/24"))
    prepare_cni_conf(rt.config, ranges=("10.1.0.0/24",))

    assert not rt.config.cni_conf_dir.exists()


def test_a_missing_template_is_named(config: Config) -> None:
    missing = msgspec.structs.replace(config, cni_conf_template="/nowhere/t")

    with pytest.raises(FailedPrecondition, match=r"^cni_conf_template /nowhere/t: cannot be read: no such file"):
        prepare_cni_conf(missing, ranges=())


def test_a_template_that_is_wrong_is_refused_before_any_range_is_known(templated: Config) -> None:
    Path(templated.cni_conf_template).write_text(TEMPLATE.replace("PodCIDRRanges", "Ranges"))

    with pytest.raises(InvalidArgument, match=r"unknown placeholder '\{\{.Ranges\}\}'"):
        prepare_cni_conf(templated, ranges=())


@pytest.mark.parametrize(("more", "is_read"), [(0, True), (1, False)])
def test_a_template_that_is_too_large_is_an_error(templated: Config, *, more: int, is_read: bool) -> None:
    Path(templated.cni_conf_template).write_text(TEMPLATE.ljust(TEMPLATE_LIMIT + more))

    with nullcontext() if is_read else pytest.raises(FailedPrecondition, match="more than 65536 bytes"):
        prepare_cni_conf(templated, ranges=())
