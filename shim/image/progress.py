"""How far a pull is, read from the Engine's progress messages. Pure: no clock, no thread.

Messages alone prove nothing: the containerd image store repeats the state of every layer ten times a second, also
while a registry is silent. Progress is a layer that comes to another step or has more bytes than before.
"""

import re
from dataclasses import dataclass

from shim.engine.answers import PullProgress

_TO_COME = frozenset({"Pulling fs layer", "Waiting", "Downloading", "Pulling layer fs"})
"""Steps in which the registry has to deliver. The last one is what newer Engines call Downloading."""
_LOCAL = frozenset({"Verifying Checksum", "Download complete", "Extracting"})
"""Steps in which this machine has to work; some of them say nothing for as long as they take."""
_DONE = frozenset({"Pull complete", "Already exists"})
_STEPS = _TO_COME | _LOCAL | _DONE
_RETRYING = re.compile(r"Retrying in (\d+) seconds?")
"""Docker's wait before it asks the registry for a layer again, counted down second by second."""
_DIGEST = "Digest: "
"""Before the digest of the manifest, or of the list it was chosen from, which Docker tells at the end of each pull."""


@dataclass(frozen=True, slots=True)
class _Layer:
    step: str
    current: int
    downloaded: int
    """Most bytes seen while downloading."""


def retry_seconds(message: PullProgress) -> int | None:
    """Give the seconds after which Docker will ask the registry again, by its own word; None if it is not waiting."""
    match = _RETRYING.fullmatch(message.status)
    return int(match[1]) if match else None


class Progress:
    """The layers of one pull."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._said = ""
        self.digest = ""
        """Of the manifest; empty before it is told."""

    def advance(self, message: PullProgress) -> bool:
        """Take in one message; whether the pull is further than before it."""
        if retry_seconds(message) is not None:  # of a layer that is where it was before
            return False
        if message.status.startswith(_DIGEST):
            self.digest = message.status.removeprefix(_DIGEST).strip()
        if message.status not in _STEPS:
            is_news = message.status != self._said
            self._said = message.status
            return is_news
        return self._advance_layer(message)

    def _advance_layer(self, message: PullProgress) -> bool:
        before = self._layers.get(message.id)
        current = _current(message)
        downloaded = before.downloaded if before else 0
        if message.status in _TO_COME:
            downloaded = max(downloaded, current)
        self._layers[message.id] = _Layer(message.status, current, downloaded)
        return before is None or before.step != message.status or current > before.current

    @property
    def is_local(self) -> bool:
        """Whether all that is left to do is done here: verifying or extracting what has arrived."""
        steps = {layer.step for layer in self._layers.values()}
        return bool(steps & _LOCAL) and not steps & _TO_COME

    @property
    def downloaded(self) -> int:
        """Bytes downloaded so far."""
        return sum(layer.downloaded for layer in self._layers.values())

    @property
    def layers(self) -> str:
        """Layers that are complete and all known ones, as `2/5`."""
        done = sum(layer.step in _DONE for layer in self._layers.values())
        return f"{done}/{len(self._layers)}"


def _current(message: PullProgress) -> int:
    current = (message.progress_detail or {}).get("current", 0)
    return current if isinstance(current, int) else 0
