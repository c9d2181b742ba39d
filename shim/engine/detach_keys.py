"""Makes detach keys for execs and attaches that no client can type, and that mark the server of an exec.

Docker has no other field of an exec that a client sets, that Docker keeps and shows, and that the process does not see.
Without a terminal, detach keys have no effect.
"""

import base64
import binascii
import secrets

_RANDOM = 16
_SERVER = 8
"""Hexadecimal digits of the random part and of the server's mark."""

_PREFIX = ("ctrl-@", "s", "h", "i", "m")
"""Docker holds back the first key until the next key. A delayed ctrl-@ (set mark in editors) has no visible effect."""
_PREFIX_BYTES = b"\0shim"


def new_server_mark() -> str:
    """Return a mark that distinguishes the execs of this server from execs of its predecessors."""
    return secrets.token_hex(_SERVER // 2)


def detach_keys(server: str) -> str:
    """Return detach keys that no user types; `server` is from `new_server_mark`.

    Docker cannot turn detach keys off: its default is ctrl-p ctrl-q, and it holds back each ctrl-p until the next key.
    The keys end with a random part, so that no input detaches a client and leaves the process running.
    """
    return ",".join([*_PREFIX, *server, *secrets.token_hex(_RANDOM // 2)])


def server_of(shown: str) -> str:
    """Return the mark of the server that created an exec, from the detach keys in its inspect; empty for others."""
    try:
        keys = base64.b64decode(shown, validate=True)
    except (binascii.Error, ValueError):
        return ""
    if not keys.startswith(_PREFIX_BYTES) or len(keys) != len(_PREFIX_BYTES) + _SERVER + _RANDOM:
        return ""
    return keys[len(_PREFIX_BYTES) :][:_SERVER].decode("ascii", "replace")
