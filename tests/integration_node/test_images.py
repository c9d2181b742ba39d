import hashlib
import io
import json
import shutil
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from integration.node import images
from integration.node.images import File, Image

IMAGE = Image(
    "docker.io/library/thing:1",
    (
        File("bin", mode=0o755, directory=True),
        File("bin/tool", b"#!/bin/sh\n", mode=0o755),
        File("bin/link", link="tool"),
    ),
    {"Entrypoint": ["/bin/tool"], "User": "5"},
)


def members(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # type: ignore[union-attr]  # a regular file has content


def test_an_archive_names_its_parts_by_their_digests() -> None:
    parts = members(images.archive(IMAGE))
    [manifest] = json.loads(parts["manifest.json"])
    config = json.loads(parts[manifest["Config"]])
    [layer] = manifest["Layers"]

    assert manifest["RepoTags"] == ["thing:1"]
    assert manifest["Config"] == hashlib.sha256(parts[manifest["Config"]]).hexdigest() + ".json"
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(parts[layer]).hexdigest()]
    assert config["config"] == {"Entrypoint": ["/bin/tool"], "User": "5"}


def test_a_layer_holds_files_links_and_directories() -> None:
    parts = members(images.archive(IMAGE))
    [layer] = json.loads(parts["manifest.json"])[0]["Layers"]
    with tarfile.open(fileobj=io.BytesIO(parts[layer])) as tar:
        entries = {entry.name: entry for entry in tar}

    assert entries["bin"].isdir()
    assert entries["bin/tool"].mode == 0o755
    assert entries["bin/link"].linkname == "tool"


def test_the_same_image_gives_the_same_bytes() -> None:
    assert images.archive(IMAGE) == images.archive(IMAGE)


def test_a_foreign_reference_keeps_its_registry() -> None:
    parts = members(images.archive(Image(images.PAUSE, ())))

    assert json.loads(parts["manifest.json"])[0]["RepoTags"] == ["registry.k8s.io/pause:3.10.2"]


def test_busybox_is_in_the_image_under_all_its_names(tmp_path: Path) -> None:
    fake = tmp_path / "busybox"
    fake.write_text("#!/bin/sh\nprintf 'busybox\\nls\\nsh\\n'\n")
    fake.chmod(0o755)

    image = images.busybox_image(fake, reference="x.test/y:1", config={"User": "www", "Cmd": ["ls"]})

    links = {file.path: file.link for file in image.files if file.link}
    assert links == {"bin/ls": "busybox", "bin/sh": "busybox"}
    assert image.config == {"Cmd": ["ls"], "Env": ["PATH=/bin"], "User": "www"}


def test_without_a_compiler_pause_is_a_shell_script(tmp_path: Path) -> None:
    (tmp_path / "busybox").write_bytes(b"shell")

    image = images.pause_image(tmp_path / "busybox", compiler="no-such-compiler")

    assert [file.path for file in image.files] == ["busybox"]
    assert image.config["Entrypoint"] == ["/busybox", "sh", "-c", images.PAUSE_SCRIPT]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler here")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_the_compiled_pause_exits_on_its_signals(number: signal.Signals, tmp_path: Path) -> None:
    [file] = images.pause_image(tmp_path / "unused").files
    program = tmp_path / "pause"
    program.write_bytes(file.content)
    program.chmod(0o755)

    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, [number]
    )  # inherited: the signal stays pending until pause waits for it
    try:
        child = subprocess.Popen([program])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    child.send_signal(number)

    assert child.wait(timeout=10) == 0
