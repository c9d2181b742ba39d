"""The progress of a pull, computed from the Engine's progress messages. Pure: no clock, no thread.

Not every message is progress: the containerd image store repeats the state of every layer ten times a second, even if
a registry does not send. Progress means that a layer enters a new step or has more bytes than before.
"""

import re
from dataclasses import dataclass, replace

from shim.engine.answers import PullProgress

_WAITING = "Waiting"
"""Status of a queued layer. With graph drivers Docker downloads three layers at a time, for all pulls together."""
_NOT_BEGUN = frozenset({_WAITING, "Pulling fs layer"})
"""Steps before the first byte. If an earlier pull of a layer was aborted in the queue, the layer keeps the second
status."""
_RETRIED = "Retrying"
"""The server's name for the step after Docker's retry, before the first byte."""
_COMING = frozenset({"Downloading", "Pulling layer fs", _RETRIED})
"""Steps during a request to the registry. Newer Engines use the second name for Downloading."""
_TO_COME = _NOT_BEGUN | _COMING
"""Steps that need data from the registry."""
_LOCAL = frozenset({"Verifying Checksum", "Download complete", "Extracting"})
"""Steps of local work. Some send no message until they are complete."""
_DONE = frozenset({"Pull complete", "Already exists"})
_STEPS = _TO_COME | _LOCAL | _DONE
_RETRYING = re.compile(r"Retrying in (\d+) seconds?")
"""Docker's countdown, second by second, before it requests a layer again."""
_DIGEST = "Digest: "
"""Prefix of the status at the end of a pull, with the digest of the manifest or manifest list."""


@dataclass(frozen=True, slots=True)
class _Layer:
    step: str
    current: int
    downloaded: int
    """Maximum of downloaded bytes that Docker has reported."""


def retry_seconds(message: PullProgress) -> int | None:
    """Return the seconds until Docker's next request to the registry, if it has announced them; else None."""
    match = _RETRYING.fullmatch(message.status)
    return int(match[1]) if match else None


class Progress:
    """The layers of a pull."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._last_status = ""
        self.digest = ""
        """Digest of the manifest; empty until Docker reports it."""

    def advance(self, message: PullProgress) -> bool:
        """Process a message. Return whether it shows progress."""
        if retry_seconds(message) is not None:  # not progress
            self._note_slot(message.id)
            return False
        if message.status.startswith(_DIGEST):
            self.digest = message.status.removeprefix(_DIGEST).strip()
        if message.status not in _STEPS:
            is_new = message.status != self._last_status
            self._last_status = message.status
            return is_new
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
        """Whether only local work is left: verifying or extracting layers."""
        steps = self._current_steps
        return bool(steps & _LOCAL) and not steps & _TO_COME

    @property
    def is_waiting(self) -> bool:
        """Whether Docker reports this pull as queued, until the first bytes of a layer arrive."""
        return _WAITING in self._current_steps and self.may_be_waiting

    @property
    def may_be_waiting(self) -> bool:
        """Whether a layer has not started, and no layer is downloading, whose stall the registry would cause."""
        steps = self._current_steps
        return bool(steps & _NOT_BEGUN) and not steps & _COMING

    @property
    def _current_steps(self) -> set[str]:
        return {layer.step for layer in self._layers.values()}

    @property
    def downloaded(self) -> int:
        """Number of downloaded bytes."""
        return sum(layer.downloaded for layer in self._layers.values())

    @property
    def layers(self) -> str:
        """Numbers of complete layers and of known layers, such as `2/5`."""
        done = sum(layer.step in _DONE for layer in self._layers.values())
        return f"{done}/{len(self._layers)}"


def _current(message: PullProgress) -> int:
    current = (message.progress_detail or {}).get("current", 0)
    return current if isinstance(current, int) else 0
