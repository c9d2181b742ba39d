import importlib
import pkgutil
import subprocess
import sys

import shim
from shim.base.decoding import prepare_types

FIRST_DECODES = """
import sys, threading
import msgspec
from shim.base.decoding import prepare_types

sys.setswitchinterval(1e-6)
CONTENT = msgspec.json.encode({f"a{at}": {"b1": 2} for at in range(20)})

for number in range(300):
    inner = msgspec.defstruct(f"Inner{number}", [(f"b{at}", int | None, None) for at in range(10)])
    outer = msgspec.defstruct(f"Outer{number}", [(f"a{at}", inner | None, None) for at in range(20)])
    if sys.argv[1:]:
        prepare_types()
    begin = threading.Barrier(4)

    def decode():
        begin.wait()
        assert msgspec.json.decode(CONTENT, type=outer).a3.b1 == 2

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del inner, outer, threads, decode
print("decoded")
"""


def first_decodes(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", FIRST_DECODES, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_several_threads_may_first_decode_a_prepared_type() -> None:
    assert first_decodes("prepared").stdout == "decoded\n"


def test_every_type_of_the_server_can_be_prepared() -> None:
    for module in pkgutil.walk_packages(shim.__path__, "shim."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    prepare_types()
