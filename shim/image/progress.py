"""How far a pull is, read from the Engine's progress messages. Pure: no clock, no thread.

Messages alone prove nothing: the containerd image store repeats the state of every layer ten times a second, also
while a registry is silent. Progress is a layer that comes to another step or has more bytes than before.
"""

import re
from dataclasses import dataclass, replace

from shim.engine.answers import PullProgress

_WAITING = "Waiting"
"""Docker's word for a layer that has no slot yet: its graph drivers download three layers at a time, of all pulls."""
_NOT_BEGUN = frozenset({_WAITING, "Pulling fs layer"})
"""Steps before the first byte. Of a layer whose earlier pull was given up in the queue the latter is said all along."""
_RETRIED = "Retrying"
"""Our word for the step of a layer that has not come to its first byte, but had a slot."""
_COMING = frozenset({"Downloading", "Pulling layer fs", _RETRIED})
"""Steps in which the registry is asked. The second one is what newer Engines call Downloading."""
_TO_COME = _NOT_BEGUN | _COMING
"""Steps in which the registry has to deliver."""
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
            self._note_slot(message.id)
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

    def _note_slot(self, layer_id: str) -> None:
        layer = self._layers.get(layer_id)
        if layer is not None and layer.step in _NOT_BEGUN:
            self._layers[layer_id] = replace(layer, step=_RETRIED)

    @property
    def is_local(self) -> bool:
        """Whether all that is left to do is done here: verifying or extracting what has arrived."""
        steps = self._current_steps
        return bool(steps & _LOCAL) and not steps & _TO_COME

    @property
    def is_waiting(self) -> bool:
        """Whether Docker lets it wait for other pulls, by its own word.

        It does not tell when a layer has got its slot, before the first bytes are there.
        """
        return _WAITING in self._current_steps and self.may_be_waiting

    @property
    def may_be_waiting(self) -> bool:
        """Whether a layer has not begun, and none is on its way whose silence would be the registry's."""
        steps = self._current_steps
        return bool(steps & _NOT_BEGUN) and not steps & _COMING

    @property
    def _current_steps(self) -> set[str]:
        return {layer.step for layer in self._layers.values()}

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
