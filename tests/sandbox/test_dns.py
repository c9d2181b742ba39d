from pathlib import Path

from shim.api.v1 import api_pb2 as pb
from shim.sandbox.dns import remove_resolv_conf, resolv_conf, write_resolv_conf


def test_every_setting_has_its_line() -> None:
    dns = pb.DNSConfig(servers=["10.96.0.10", "fd00::10"], searches=["a.b", "c"], options=["ndots:5", "edns0"])
    assert resolv_conf(dns) == "nameserver 10.96.0.10\nnameserver fd00::10\nsearch a.b c\noptions ndots:5 edns0\n"
    assert resolv_conf(pb.DNSConfig(servers=["1.1.1.1"])) == "nameserver 1.1.1.1\n"


def test_without_settings_the_host_decides(tmp_path: Path) -> None:
    host = tmp_path / "host"
    assert resolv_conf(None, host=host) == ""
    host.write_text("nameserver 9.9.9.9\n")
    assert resolv_conf(None, host=host) == "nameserver 9.9.9.9\n"
    assert resolv_conf(pb.DNSConfig(), host=host) == "nameserver 9.9.9.9\n"


def test_a_rewrite_keeps_the_inode_that_containers_have_mounted(tmp_path: Path) -> None:
    path = tmp_path / "pods" / "resolv.conf"
    write_resolv_conf(path, "nameserver 1.1.1.1\n")
    inode = path.stat().st_ino
    write_resolv_conf(path, "nameserver 2.2.2.2\n")
    assert path.read_text() == "nameserver 2.2.2.2\n"
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o777 == 0o644


def test_removal_accepts_that_there_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "resolv.conf"
    remove_resolv_conf(path)
    path.write_text("")
    remove_resolv_conf(path)
    assert not path.exists()
