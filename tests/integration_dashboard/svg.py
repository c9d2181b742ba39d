"""What is in a picture."""

from xml.etree import ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return [each.text or "" for each in ET.fromstring(svg).iter(f"{SVG}text")]


def lines(svg: str) -> list[str]:
    """The paths of series, without those of the legend."""
    found = [each.attrib for each in ET.fromstring(svg).iter(f"{SVG}path")]
    return [each["d"] for each in found if each["class"].startswith("l ") and not each["d"].endswith("h14")]
