import os
from pathlib import Path

import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import ShimError
from shim.sandbox.dns import RESOLV_CONF_LIMIT, remove_resolv_conf, resolv_conf, write_resolv_conf


def test_every_setting_has_its_line() -> None:
    dns = pb.DNSConfig(servers=["10.96.0.10", "fd00::10"], searches=["a.b", "c"], options=["ndots:5", "edns0"])
    assert resolv_conf(dns) == b"nameserver 10.96.0.10\nnameserver fd00::10\nsearch a.b c\noptions ndots:5 edns0\n"
    assert resolv_conf(pb.DNSConfig(servers=["1.1.1.1"])) == b"nameserver 1.1.1.1\n"


def test_without_settings_the_hosts_file_is_copied(tmp_path: Path) -> None:
    host = tmp_path / "host"
    assert resolv_conf(None, host=host) == b""
    host.write_text("nameserver 9.9.9.9\n")
    assert resolv_conf(None, host=host) == b"nameserver 9.9.9.9\n"
    assert resolv_conf(pb.DNSConfig(), host=host) == b"nameserver 9.9.9.9\n"


def test_the_hosts_file_may_have_any_encoding(tmp_path: Path) -> None:
    host, path = tmp_path / "host", tmp_path / "resolv.conf"
    host.write_bytes(b"# B\xfcro\r\nnameserver 9.9.9.9\r\n")

    for _ in range(2):
        write_resolv_conf(path, resolv_conf(None, host=host))
        assert path.read_bytes() == host.read_bytes()


def test_a_file_of_the_host_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ShimError, match=f"^read {tmp_path} for a pod without DNS settings: not a regular file$"):
        resolv_conf(None, host=tmp_path)


def test_a_rewrite_keeps_the_inode_that_containers_have_mounted(tmp_path: Path) -> None:
    path = tmp_path / "pods" / "resolv.conf"
    write_resolv_conf(path, b"nameserver 1.1.1.1\n")
    inode = path.stat().st_ino
    write_resolv_conf(path, b"nameserver 2.2.2.2\n")
    assert path.read_text() == "nameserver 2.2.2.2\n"
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_file_modified_by_a_pod_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    content = b"nameserver 1.1.1.1\n"
    write_resolv_conf(path, content)
    inode = path.stat().st_ino
    os.truncate(path, 1 << 40)  # a sparse file

    write_resolv_conf(path, content)

    assert (path.read_bytes(), path.stat().st_ino) == (content, inode)


def test_removing_a_missing_file_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    remove_resolv_conf(path)
    path.write_text("")
    remove_resolv_conf(path)
    assert not path.exists()


def test_the_size_of_the_hosts_file_is_limited(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.write_bytes(b"#" * (RESOLV_CONF_LIMIT + 1))
    with pytest.raises(ShimError, match=f"read {host} for a pod without DNS settings: more than 1048576 bytes"):
        resolv_conf(None, host=host)
