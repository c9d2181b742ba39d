"""An emulated machine with cgroup v2: this machine's files under Debian's kernel."""
