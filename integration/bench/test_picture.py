"""The picture of invented figures."""

from xml.etree import ElementTree as ET

import msgspec
import pytest

from integration.bench import figures
from integration.bench.figures import compared_row
from integration.bench.picture import drawn
from integration.bench.report import Other, Report
from integration.bench.test_report import report

SVG = "{http://www.w3.org/2000/svg}"
NAMES = (figures.START, "40 pods, 8 at a time", figures.STOP, "ExecSync", "ListContainers", "ListPodSandbox")
TOOK = {"floor": 200.4, "server": 100.2, "containerd": 50.1}


def whole_report(*, took: dict[str, float] = TOOK) -> Report:
    rows = [compared_row(name, took) for name in NAMES]
    others = [Other(name=side, version="1") for side in took if side not in {figures.FLOOR, figures.SERVER}]
    return msgspec.structs.replace(report(others=others), compared=rows)


def picture(of: Report) -> ET.Element:
    return ET.fromstring(drawn(of, date="2026-11-24"))


def texts(root: ET.Element) -> list[str]:
    return [element.text or "" for element in root.iter(f"{SVG}text")]


def bars(root: ET.Element, *, side: int) -> list[float]:
    return [
        float(element.attrib["width"]) for element in root.iter(f"{SVG}rect") if element.get("class") == f"side{side}"
    ]


def test_the_picture_names_the_engine_the_machine_and_the_date() -> None:
    said = " ".join(texts(picture(whole_report())))

    assert "Docker Engine 28.5.2" in said
    assert "2 CPUs, 2026-11-24" in said
    for name in ("pydockershim", "Docker and CNI directly", "containerd"):
        assert said.count(name) == len(NAMES)


def test_bars_are_proportional_to_their_figures_and_labelled() -> None:
    root = picture(whole_report())
    server, floor, other = (bars(root, side=side) for side in range(3))

    assert len(server) == len(floor) == len(other) == len(NAMES)
    assert server[0] == pytest.approx(floor[0] / 2)
    assert other[0] == pytest.approx(floor[0] / 4)
    assert {"200", "100", "50.1"} <= set(texts(root))


def test_a_side_without_a_call_has_no_bar() -> None:
    root = picture(whole_report(took={"server": 2.0, "containerd": 1.0}))

    assert (len(bars(root, side=0)), len(bars(root, side=1))) == (len(NAMES), 0)


@pytest.mark.parametrize("took", [TOOK, {**TOOK, "cri-dockerd": 0.001}], ids=["three", "four"])
def test_everything_is_drawn_inside_the_picture(took: dict[str, float]) -> None:
    root = picture(whole_report(took=took))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])

    for element in root.iter(f"{SVG}rect"):
        assert float(element.attrib["x"]) + float(element.attrib["width"]) <= width
        assert float(element.attrib["y"]) + float(element.attrib["height"]) <= height
    assert max(float(element.attrib["y"]) for element in root.iter(f"{SVG}text")) < height


def test_names_are_escaped() -> None:
    assert "<b> & c" in texts(picture(whole_report(took={**TOOK, "<b> & c": 3.0})))
