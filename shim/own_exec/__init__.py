"""The server's own exec: a process that joins a container by itself, where Docker would start runc twice.

`__main__` is the program that joins: a helper process of the standard library alone, which forks for each command.
The server talks to it through `client`.
"""

LISTEN = "listen"
"""The program's argument when systemd hands over a listening socket."""
