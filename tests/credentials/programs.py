"""Executables written by tests: each records its input, then runs the test's script."""

import json
import shlex
from pathlib import Path

RECORD = """#!/bin/sh
question=$(cat)
echo "$@|$question" >>{record}
"""


class Programs:
    """A directory of executables, and their recorded input."""

    def __init__(self, directory: Path) -> None:
        self.bin_dir = directory / "bin"
        self._record = directory / "asked"
        self.bin_dir.mkdir(parents=True)

    def write(self, name: str, body: str) -> Path:
        """Create an executable from a shell script; `$question` is its standard input."""
        path = self.bin_dir / name
        path.write_text(RECORD.format(record=shlex.quote(str(self._record))) + body + "\n")
        path.chmod(0o755)
        return path

    def write_printing(self, name: str, answer: object, *, code: int = 0) -> Path:
        """Create an executable that prints `answer` (text as is, anything else as JSON) and exits with `code`."""
        text = answer if isinstance(answer, str) else json.dumps(answer)
        return self.write(name, f"printf '%s' {shlex.quote(text)}; exit {code}")

    @property
    def asked(self) -> list[str]:
        """Return `arguments|standard input` of every run, in order."""
        return self._record.read_text().splitlines() if self._record.exists() else []


def response(
    auth: object, *, version: str = "v1", cache: str = "Image", duration: str | None = None
) -> dict[str, object]:
    """A CredentialProviderResponse; `auth` maps locations to (user, password)."""
    pairs = auth if not isinstance(auth, dict) else {at: {"username": u, "password": p} for at, (u, p) in auth.items()}
    given: dict[str, object] = {
        "kind": "CredentialProviderResponse",
        "apiVersion": f"credentialprovider.kubelet.k8s.io/{version}",
        "cacheKeyType": cache,
        "auth": pairs,
    }
    return given if duration is None else {**given, "cacheDuration": duration}
