"""What a wheel brings for a node is what a checkout shows."""

from pathlib import Path

from shim import share

ROOT = Path(__file__).parents[2]


def test_every_unit_of_the_checkout_is_there() -> None:
    directory = ROOT / "packaging" / "systemd"
    files = {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}

    aliases = {f"as-cri-dockerd/{name}": share.alias_unit(name) for name in share.AS_CRI_DOCKERD}
    assert {name: share.unit(name) for name in share.UNITS} | aliases == files


def test_every_example_of_the_checkout_is_there() -> None:
    files = {path.stem: path.read_text() for path in (ROOT / "cni_conf_examples").glob("*.conflist")}

    assert {name: share.example(name) for name in share.example_names()} == files
