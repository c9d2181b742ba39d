"""What docs/install.md shows is what is there, and what the code takes."""

import json
import re
from pathlib import Path

import yaml

from shim.config.model import Config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/install.md").read_text()


def block(kind: str, heading: str) -> str:
    """The first block of that kind below a heading."""
    found = re.search(rf"```{kind}\n(.*?)```", PAGE.split(f"\n## {heading}\n")[1], flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_sample_for_docker_is_the_file() -> None:
    shown = json.loads(block("json", "Before"))

    assert shown == json.loads((ROOT / "packaging/docker/daemon.json").read_text())
    assert shown["live-restore"] is True
    assert shown["exec-opts"] == ["native.cgroupdriver=systemd"]


def test_crictl_is_led_to_the_server() -> None:
    shown = yaml.safe_load(block("yaml", "crictl"))

    assert {shown["runtime-endpoint"], shown["image-endpoint"]} == {Config().container_runtime_endpoint}
