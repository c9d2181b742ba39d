"""Fresh machines of several distributions, booted with systemd in containers: `make test-packages`."""
