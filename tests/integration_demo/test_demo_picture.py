"""The picture of a terminal: lines in order, at their times, as valid XML."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

from integration.demo_picture import Line, picture

SVG = "{http://www.w3.org/2000/svg}"


def rows(svg: str) -> list[tuple[str, float]]:
    """Return each line with its time of appearance in seconds."""
    found = []
    for text in ET.fromstring(svg).findall(f"{SVG}text")[1:]:
        animation = text.find(f"{SVG}animate")
        moment = 0.0
        if animation is not None:
            moment = float(animation.attrib["keyTimes"].split(";")[1]) * float(animation.attrib["dur"].rstrip("s"))
        found.append((text.text or "", moment))
    return found


def test_lines_appear_in_their_order_and_long_pauses_are_short() -> None:
    lines = [Line(0.0, "first"), Line(0.0, "at once"), Line(60.0, "a minute later"), Line(60.5, "<last> & least")]

    found = rows(picture(lines, command="make demo"))

    assert [text for text, _ in found] == ["# make demo", "first", "at once", "a minute later", "<last> & least"]
    moments = [moment for _, moment in found]
    assert moments == sorted(moments)
    assert moments[3] - moments[2] < 2
    assert 0.4 < moments[4] - moments[3] < 0.6


def test_standard_input_is_recorded_and_printed(tmp_path: Path) -> None:
    path = tmp_path / "demo.svg"
    command = [sys.executable, "-m", "integration.demo_picture", str(path)]
    shown = subprocess.run(command, input="one\ntwo\n", capture_output=True, text=True, check=True).stdout

    assert shown == "one\ntwo\n"
    assert [text for text, _ in rows(path.read_text())] == ["# make demo", "one", "two"]
