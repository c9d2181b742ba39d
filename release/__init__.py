"""Build what users install: `make packages` and `make release`."""
