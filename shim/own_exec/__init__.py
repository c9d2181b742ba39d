"""Exec without Docker: a process of the server joins the container. Docker would start runc twice.

`__main__` is the exec program: a helper process that uses only the standard library, and forks for each command. The
server talks to it through `client`.
"""

LISTEN = "listen"
"""The program's argument if systemd passes a listening socket."""
