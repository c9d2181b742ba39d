import json
from pathlib import Path

import pytest

from shim.cni.template import render
from shim.domain.errors import InvalidArgument

SHIPPED = Path(__file__).parents[2] / "cni_conf_examples" / "kubenet.conflist.template"
LEAST = '{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "x": %s}]}'


def test_the_shipped_template_has_one_range_set_and_one_route_for_each_family() -> None:
    ranges = ("10.244.1.0/24", "fd00:10:244:1::/64")

    made = json.loads(render(SHIPPED.read_text(), ranges=ranges, source=str(SHIPPED)))

    bridge = made["plugins"][0]
    assert bridge["ipam"]["ranges"] == [[{"subnet": ranges[0]}], [{"subnet": ranges[1]}]]
    assert bridge["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    assert [plugin["type"] for plugin in made["plugins"]] == ["bridge", "portmap", "firewall"]


def test_a_single_range_has_only_the_route_of_its_family() -> None:
    made = json.loads(render(LEAST % "{{.Routes}}", ranges=("fd00::/64",), source="t"))

    assert made["plugins"][0]["x"] == [{"dst": "::/0"}]


def test_the_first_range_is_inserted_inside_quotes() -> None:
    made = json.loads(render(LEAST % '"{{ .PodCIDR }}"', ranges=("10.1.0.0/24", "fd00::/64"), source="t"))

    assert made["plugins"][0]["x"] == "10.1.0.0/24"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            LEAST % "{{.PodCidr}}",
            r"^cni_conf_template /t: unknown placeholder '\{\{.PodCidr\}\}'; known are \{\{.PodCIDR",
        ),
        (LEAST % "{{range .PodCIDRRanges}}1{{end}}", r"/t: unknown placeholder '\{\{range "),
        (LEAST % "{{.PodCIDR}}", "^cni_conf_template /t: not JSON: "),
        ('{"name": "pods", "plugins": []}', "^cni_conf_template /t: no plugins"),
        ("", "/t: not JSON: the file is empty"),
    ],
)
def test_an_error_names_the_file_and_the_fault(template: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        render(template, ranges=("10.1.0.0/24",), source="/t")
