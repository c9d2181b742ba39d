"""Control groups of this machine, version 1, 2 and both side by side: where they are and what their files hold."""
