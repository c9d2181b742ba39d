#!/bin/sh
# Make the virtual environment: sh venv.sh PYTHON
# The one piece of set-up in shell, because it runs before there is a Python environment to run anything in.
set -eu
python=$1
started=$(date +%s)

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "venv: $python is missing or older than 3.11; say which to use with make PYTHON=..." >&2
    exit 1
}
if [ ! -x .venv/bin/python ]; then
    # Debian keeps the part of venv that brings pip in a package of its own.
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
# Wheels of the generator of shim/api end with CPython 3.11; proto/generate.py says why it is an old one.
if .venv/bin/python -c 'import sys; sys.exit(sys.version_info >= (3, 12))'; then
    .venv/bin/python -m pip install --quiet --no-deps --upgrade --target .venv/protoc --requirement proto/requirements.txt
fi
# Apart, since it brings rich: structlog imports that where it is there, and would take longer than on a node.
.venv/bin/python -m pip install --quiet --upgrade --target .venv/contracts 'import-linter>=2.5'
touch .venv/.installed
echo "    $(($(date +%s) - started)) s"
