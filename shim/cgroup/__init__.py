"""Control groups of this machine, of version 1, version 2 and both together: their paths and their files."""
