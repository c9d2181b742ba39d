"""The samples in docs/install.md agree with the files and the code."""

import json
import re
from pathlib import Path

import yaml

from shim.config.model import Config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/install.md").read_text()


def block(kind: str, heading: str) -> str:
    """Return the first block of a language below a heading."""
    found = re.search(rf"```{kind}\n(.*?)```", PAGE.split(f"\n## {heading}\n")[1], flags=re.DOTALL)
    assert found is not None
    return found[1]


def test_the_sample_of_daemon_json_is_the_packaged_file() -> None:
    shown = json.loads(block("json", "Before"))

    assert shown == json.loads((ROOT / "packaging/docker/daemon.json").read_text())
    assert shown["live-restore"] is True
    assert shown["exec-opts"] == ["native.cgroupdriver=systemd"]


def test_the_sample_of_crictl_has_the_servers_socket() -> None:
    shown = yaml.safe_load(block("yaml", "crictl"))

    assert {shown["runtime-endpoint"], shown["image-endpoint"]} == {Config().container_runtime_endpoint}
