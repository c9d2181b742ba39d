"""The boot files of an emulated machine."""

import lzma
from pathlib import Path

import pytest

from integration.node.commands import NodeError
from integration.node.packages import Record, Unpacked
from integration.vm.machine import ensure_module_table

_DEPMOD = """\
#!/bin/sh
# depmod -b ROOT VERSION: begins its tables, and ends with what the file "status" says.
modules=$3/lib/modules/$4
echo begun >>$modules/modules.dep
exit $(cat $3/status)
"""


def test_incomplete_tables_are_made_again(tmp_path: Path) -> None:
    modules = tmp_path / "lib/modules/6.1.0-50-amd64"
    modules.mkdir(parents=True)
    program = tmp_path / "busybox"
    program.write_text(_DEPMOD)
    program.chmod(0o755)
    kernel = Unpacked(root=tmp_path, record=Record(suite="bookworm", versions={}))
    status = tmp_path / "status"

    status.write_text("1")
    with pytest.raises(NodeError, match="depmod"):
        ensure_module_table(kernel, busybox=program)
    status.write_text("0")
    ensure_module_table(kernel, busybox=program)
    ensure_module_table(kernel, busybox=program)

    assert (modules / "modules.dep").read_text().splitlines() == ["begun", "begun"]


def test_compressed_modules_of_a_newer_package_are_unpacked(tmp_path: Path) -> None:
    modules = tmp_path / "usr/lib/modules/6.12.117"
    modules.mkdir(parents=True)
    (modules / "veth.ko.xz").write_bytes(lzma.compress(b"module"))
    program = tmp_path / "busybox"
    program.write_text(_DEPMOD)
    program.chmod(0o755)
    (tmp_path / "status").write_text("0")

    ensure_module_table(Unpacked(root=tmp_path, record=Record(suite="trixie", versions={})), busybox=program)

    assert (tmp_path / "lib/modules/6.12.117/veth.ko").read_bytes() == b"module"
    assert not (modules / "veth.ko.xz").exists()
    assert (modules / "modules.dep").exists()
