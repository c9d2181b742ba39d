"""Each command that changes something on the engine does to a pod what docs/by-hand.md says."""

import pytest

from integration.by_hand.hands import Hands
from integration.by_hand.verbs import VERBS


@pytest.mark.parametrize("verb", VERBS, ids=[f"{section}: {command}" for section, command in VERBS])
def test_docker_by_hand(hands: Hands, verb: tuple[str, str]) -> None:
    VERBS[verb](hands)
    hands.end()
