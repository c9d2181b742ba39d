"""A wheel has the same files for a node as a checkout."""

import tomllib
from hashlib import sha256
from pathlib import Path

from shim import share

ROOT = Path(__file__).parents[2]


def test_every_unit_of_the_checkout_is_shared() -> None:
    directory = ROOT / "packaging" / "systemd"
    files = {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}

    aliases = {f"as-cri-dockerd/{name}": share.alias_unit(name) for name in share.AS_CRI_DOCKERD}
    assert {name: share.unit(name) for name in share.UNITS} | aliases == files


def test_every_example_of_the_checkout_is_shared() -> None:
    files = {path.stem: path.read_text() for path in (ROOT / "cni_conf_examples").glob("*.conflist")}

    assert {name: share.example(name) for name in share.example_names()} == files


CONFIGURATION = "bcea80a64c34d63c39515cf4941028f6e2868f3ce08ab276cabf05f975aaa70a"
"""Digest of config.toml in every release."""


def test_the_configuration_is_the_same_in_every_release() -> None:
    # dpkg asks about a file that both a release and the user changed, which blocks an unattended upgrade.
    assert sha256(share.configuration().encode()).hexdigest() == CONFIGURATION


def test_the_configuration_sets_nothing_and_names_its_documentation() -> None:
    text = share.configuration()

    assert tomllib.loads(text) == {}
    assert "pydockershim config --reference" in text
    assert (ROOT / "docs/configuration.md").is_file()
    assert "docs/configuration.md" in text
