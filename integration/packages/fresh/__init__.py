"""Fresh machines of distributions, booted with systemd in containers: `make test-packages`."""
