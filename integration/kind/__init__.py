"""The node image for kind, built on a stand-in of Debian packages and booted under systemd."""
