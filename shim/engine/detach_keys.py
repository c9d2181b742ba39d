"""The keys of an exec or attach that would detach its client: such that no client can use them, and a mark of the exec.

Docker has no other field of an exec that a client sets, Docker keeps and shows, and the process does not see. Without a
terminal the keys have no effect at all.
"""

import base64
import binascii
import secrets

_RANDOM = 16
_SERVER = 8
"""Hexadecimal digits of either."""

_MARK = ("ctrl-@", "s", "h", "i", "m")
"""Of the keys that can be named, a delayed ctrl-@ (set mark, in editors) is the one without a visible effect."""
_MARK_BYTES = b"\0shim"


def new_server_mark() -> str:
    """Return what distinguishes the execs of one server from those of its predecessors."""
    return secrets.token_hex(_SERVER // 2)


def detach_keys(server: str) -> str:
    """Return keys to detach with that no user types: Docker has no way to have none.

    Left alone it takes ctrl-p ctrl-q, and keeps each ctrl-p back until the next key. What follows the mark is random,
    so that no input leaves a process behind without its client. `server` is a mark of `new_server_mark`.
    """
    return ",".join([*_MARK, *server, *secrets.token_hex(_RANDOM // 2)])


def server_of(shown: str) -> str:
    """Return the mark of the server that has made an exec, by its keys as Docker shows them; empty for all others."""
    try:
        keys = base64.b64decode(shown, validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not keys.startswith(_MARK_BYTES) or len(keys) != len(_MARK_BYTES) + _SERVER + _RANDOM:
        return ""
    return keys[len(_MARK_BYTES) :][:_SERVER].decode("ascii", "replace")
