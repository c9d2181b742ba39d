#!/bin/sh
# Create the virtual environment: sh venv.sh PYTHON
# In shell, because it runs before a Python environment exists.
set -eu
python=$1
started=$(date +%s)

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "venv: $python is missing or older than 3.11; say which to use with make PYTHON=..." >&2
    exit 1
}
if [ ! -x .venv/bin/python ]; then
    # Debian has the part of venv that installs pip in a separate package.
    "$python" -c 'import ensurepip' 2>/dev/null || {
        echo "  - installing python3-venv"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
    }
    echo "  - making .venv with $("$python" --version)"
    "$python" -m venv .venv
fi
echo "  - installing pydockershim and its development tools into .venv"
.venv/bin/python -m pip install --quiet --editable '.[dev]'
# The generator of shim/api has no wheels after CPython 3.11; proto/generate.py says why it is an old version.
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
    .venv/bin/python -m pip install --quiet --no-deps --upgrade --target .venv/protoc --requirement proto/requirements.txt
fi
# Separate, since it installs rich: structlog imports rich if present, and would start more slowly than on a node.
.venv/bin/python -m pip install --quiet --upgrade --target .venv/contracts 'import-linter>=2.5'
touch .venv/.installed
echo "    $(($(date +%s) - started)) s"
