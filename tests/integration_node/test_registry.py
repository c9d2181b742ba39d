import json
import socket
from pathlib import Path

import pytest

from integration.node.registry import Registry, free_port


@pytest.mark.parametrize("private", [True, False], ids=["private", "open"])
def test_only_a_private_registry_requires_a_password(private: bool, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "docker-registry", home=tmp_path / "home", private=private)
    settings = json.loads((tmp_path / "home/config.yml").read_text())

    assert ("auth" in settings) is private
    assert (registry.auth_config is not None) is private
    assert settings["http"]["addr"] == registry.address


def test_a_free_port_can_be_listened_on() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", free_port()))
        server.listen()
