"""Readers of the dashboard's SVG pictures."""

from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def lines(svg: str) -> list[str]:
    """Return the paths of series, without the legend's."""
    found = [each.attrib for each in ET.fromstring(svg).iter(f"{SVG}path")]
    return [each["d"] for each in found if each["class"].startswith("l ") and not each["d"].endswith("h14")]
