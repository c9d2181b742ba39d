"""Every format of checkpoint files so far, and a future format. Formats are added, never changed."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

JsonObject = dict[str, Any]
Form = Callable[[JsonObject], bytes]
"""Returns the file of a current checkpoint, given as plain JSON values, in that format."""


def enveloped(data: JsonObject, *, version: int = 1) -> bytes:
    """Return a file with `data` and the right checksum."""
    text = json.dumps(data)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    return f'{{"version":{version},"checksum":"{checksum}","data":{text}}}'.encode()


def draft(today: JsonObject) -> bytes:
    """Version 1 before its first use: the pod's identity in separate fields, and no configuration."""
    metadata = today["config"]["metadata"]
    kept = {name: today[name] for name in ("sandbox_id", "ready", "network")}
    identity = {name: metadata.get(name, "") for name in ("name", "namespace", "uid")}
    return enveloped({**kept, **identity, "attempt": 0, "host_network": today["network"] is None})


def without_start(today: JsonObject) -> bytes:
    """Version 1 without the start time of the pause container."""
    return enveloped({name: value for name, value in today.items() if name != "pause_started_at"})


def with_start(today: JsonObject) -> bytes:
    """Version 1 as it is."""
    return enveloped(today)


def with_more(today: JsonObject) -> bytes:
    """Version 1 with a field that a later server has added, with a default."""
    return enveloped({**today, "field_to_come": {"a": 1}})


def version_2(today: JsonObject) -> bytes:
    """A future version with a different structure."""
    return json.dumps({"version": 2, "pods": [today]}).encode()


READ: dict[str, Form] = {"without start": without_start, "with start": with_start, "with more": with_more}
"""Those that this server reads."""
SET_ASIDE: dict[str, tuple[Form, str]] = {
    "draft": (draft, "corrupt/{}.json.corrupt-1"),
    "version 2": (version_2, "corrupt/{}.json.corrupt-1"),
}
"""Those that it does not, and where it puts them."""
