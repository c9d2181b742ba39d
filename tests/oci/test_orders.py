"""The files of OCI runtime orders."""

import time
from pathlib import Path

from shim.oci import orders
from shim.oci_runtime.order import Order, UserNamespace

LATER = time.time() + 3600


def order(container: str) -> Order:
    return Order(container, UserNamespace(uid=1, uids=1, gid=1, gids=1, pause=""), "/var/lib/docker")


def test_an_order_is_private_and_deleted_with_its_container(tmp_path: Path) -> None:
    directory = tmp_path / "oci"
    orders.put(directory, order("a"))

    assert (directory.stat().st_mode & 0o777, (directory / "a").stat().st_mode & 0o777) == (0o700, 0o600)
    orders.delete(directory, "a")
    orders.delete(directory, "a")
    assert list(directory.iterdir()) == []


def test_orders_of_removed_containers_are_deleted(tmp_path: Path) -> None:
    for container in ("a", "b"):
        orders.put(tmp_path, order(container))

    orders.keep_only(tmp_path, {"a"}, before=LATER)

    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_new_order_is_kept(tmp_path: Path) -> None:
    orders.put(tmp_path, order("a"))

    orders.keep_only(tmp_path, set(), before=LATER - 7200)

    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_missing_directory_has_no_orders(tmp_path: Path) -> None:
    orders.keep_only(tmp_path / "none", set(), before=LATER)
    orders.delete(tmp_path / "none", "a")
