"""Each Docker command that changes the engine affects a pod as docs/by-hand.md says."""

import pytest

from integration.by_hand.hands import Hands
from integration.by_hand.verbs import VERBS


@pytest.mark.parametrize("verb", VERBS, ids=[f"{section}: {command}" for section, command in VERBS])
def test_a_command_by_hand_affects_the_pod_as_documented(hands: Hands, verb: tuple[str, str]) -> None:
    VERBS[verb](hands)
    hands.end()
