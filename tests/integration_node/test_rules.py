import shlex

from integration.node.rules import undo_commands

BEFORE = """*filter
:INPUT ACCEPT
:FORWARD ACCEPT
:OURS -
-A FORWARD -j OURS
COMMIT"""
AFTER = """*filter
:INPUT ACCEPT
:FORWARD DROP
:OURS -
:CNI-FORWARD -
:DOCKER -
-A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -j OURS
-A FORWARD -s 192.0.2.0/24 -j ACCEPT
-A DOCKER -i docker0 -j RETURN
COMMIT
*nat
:POSTROUTING ACCEPT
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
COMMIT"""


def test_rules_are_deleted_before_their_chains_and_rules_of_others_stay() -> None:
    undone = [shlex.join(words) for words in undo_commands(BEFORE.splitlines(), AFTER.splitlines())]

    assert undone == [
        "-t filter -F CNI-FORWARD",
        "-t filter -F DOCKER",
        "-t filter -D FORWARD -m comment --comment 'CNI firewall plugin rules' -j CNI-FORWARD",
        "-t filter -D FORWARD -o docker0 -j DOCKER",
        "-t nat -D POSTROUTING -s 172.17.0.0/16 '!' -o docker0 -j MASQUERADE",
        "-t filter -P FORWARD ACCEPT",
        "-t filter -X CNI-FORWARD",
        "-t filter -X DOCKER",
    ]


def test_unchanged_rules_are_not_touched() -> None:
    assert list(undo_commands(AFTER.splitlines(), AFTER.splitlines())) == []
