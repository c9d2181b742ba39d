"""The progress of a pull, from the Engine's progress messages. Pure: no clock, no thread.

A message alone is not progress: the containerd image store repeats the state of every layer ten times a second, also
while a registry is silent. Progress is a layer that enters another step or has more bytes than before.
"""

import re
from dataclasses import dataclass, replace

from shim.engine.answers import PullProgress

_WAITING = "Waiting"
"""Status of a layer in the queue: with graph drivers Docker downloads three layers at a time, of all pulls."""
_NOT_BEGUN = frozenset({_WAITING, "Pulling fs layer"})
"""Steps before the first byte. A layer whose earlier pull was aborted in the queue shows the second one all along."""
_RETRIED = "Retrying"
"""Our name for the step of a layer that had a slot, but has not received its first byte."""
_COMING = frozenset({"Downloading", "Pulling layer fs", _RETRIED})
"""Steps of a running request to the registry. The second one is what newer Engines call Downloading."""
_TO_COME = _NOT_BEGUN | _COMING
"""Steps in which the registry has to deliver."""
_LOCAL = frozenset({"Verifying Checksum", "Download complete", "Extracting"})
"""Steps of work on this machine; some send no message until they are done."""
_DONE = frozenset({"Pull complete", "Already exists"})
_STEPS = _TO_COME | _LOCAL | _DONE
_RETRYING = re.compile(r"Retrying in (\d+) seconds?")
"""Docker's wait before it asks the registry for a layer again, counted down second by second."""
_DIGEST = "Digest: "
"""Prefix of the digest of the manifest, or of its list, which Docker reports at the end of each pull."""


@dataclass(frozen=True, slots=True)
class _Layer:
    step: str
    current: int
    downloaded: int
    """Highest number of bytes seen while downloading."""


def retry_seconds(message: PullProgress) -> int | None:
    """Return the seconds until Docker asks the registry again, as it reports them; None if it is not waiting."""
    match = _RETRYING.fullmatch(message.status)
    return int(match[1]) if match else None


class Progress:
    """The layers of one pull."""

    def __init__(self) -> None:
        self._layers: dict[str, _Layer] = {}
        self._last_status = ""
        self.digest = ""
        """Of the manifest; empty until Docker reports it."""

    def advance(self, message: PullProgress) -> bool:
        """Process one message. Return whether it shows progress."""
        if retry_seconds(message) is not None:  # no progress of this layer
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
        """Whether only local work is left: verifying or extracting layers that have arrived."""
        steps = self._current_steps
        return bool(steps & _LOCAL) and not steps & _TO_COME

    @property
    def is_waiting(self) -> bool:
        """Whether Docker reports that it is queued behind other pulls.

        It does not report that a layer has got its slot until the first bytes have arrived.
        """
        return _WAITING in self._current_steps and self.may_be_waiting

    @property
    def may_be_waiting(self) -> bool:
        """Whether a layer has not started, and none is downloading whose stall would be the registry's."""
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
        """Number of complete layers and of all known ones, as `2/5`."""
        done = sum(layer.step in _DONE for layer in self._layers.values())
        return f"{done}/{len(self._layers)}"


def _current(message: PullProgress) -> int:
    current = (message.progress_detail or {}).get("current", 0)
    return current if isinstance(current, int) else 0
