"""A CNI plugin that implements GC, chained after a `bridge` with host-local: it frees addresses without attachment.

The reference plugins up to 1.9 accept GC and do nothing. `install` writes this module to a file, which runs like any
plugin and needs only the standard library.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any


def install(directory: Path) -> Path:
    """Write the plugin `reaper` to a plugin directory, and return its file."""
    program = directory / "reaper"
    program.write_text(f"#!{sys.executable} -I\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    return program


def main(config: dict[str, Any], verb: str) -> int:
    """Run a verb; DEL fails while the configuration's file `broken` exists."""
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
