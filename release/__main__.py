"""Build what users install: `python -m release wheel sdist deb`, into build/packages."""

import argparse
import sys
from pathlib import Path

from release.build import KINDS, build_into
from release.bundle import MACHINES, this_machine
from release.errors import BuildError
from release.publish import publish
from release.source import CHECKOUT


def main() -> int:
    """Build what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("kind", nargs="+", choices=[*KINDS, "all"], help="what to build; all for a release")
    parser.add_argument("--into", type=Path, default=CHECKOUT / "build" / "packages", metavar="DIR")
    parser.add_argument("--machine", choices=[*MACHINES, "all"], help="machine type; default: that of this machine")
    parser.add_argument("--key", default="", help="sign a release with this key of gpg")
    given = parser.parse_args()
    try:
        machines = (
            list(MACHINES.values()) if given.machine == "all" else [MACHINES.get(given.machine) or this_machine()]
        )
        if "all" in given.kind:
            publish(given.into.absolute(), machines, key=given.key, announce=print)
        else:
            build_into(given.into.absolute(), given.kind, machines, announce=print)
    except BuildError as error:
        print(f"release: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
