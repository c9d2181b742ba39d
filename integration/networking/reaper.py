"""A CNI plugin that knows GC, behind a `bridge` with host-local: it frees the addresses of whatever has gone.

No plugin of the reference releases does so up to 1.9: they take GC, and do nothing. Written to a file by `install`,
and run as any other; it needs the standard library alone.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def install(directory: Path) -> Path:
    """Write the plugin `reaper` into a directory of plugins, and return its file."""
    program = directory / "reaper"
    program.write_text(f"#!{sys.executable} -I\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    return program


def main(config: dict[str, Any], verb: str) -> int:
    """Do what a verb asks for; DEL fails while the file `broken` of the configuration is there."""
    match verb:
        case "VERSION":
            print(json.dumps({"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}))
        case "ADD":
            print(json.dumps(config["prevResult"]))
        case "DEL" if Path(config["broken"]).exists():
            print(json.dumps({"cniVersion": "1.1.0", "code": 11, "msg": "not now"}))
            return 1
        case "GC":
            Path(config["asked"]).write_text(json.dumps(config))
            _collect(Path(config["leases"]), valid=config["cni.dev/valid-attachments"])
    return 0


def _collect(leases: Path, *, valid: list[dict[str, str]]) -> None:
    stay = {(attachment["containerID"], attachment["ifname"]) for attachment in valid}
    for lease in leases.glob("*"):
        words = lease.read_text().split()
        if len(words) == 2 and tuple(words) not in stay:
            lease.unlink()


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin), os.environ["CNI_COMMAND"]))
