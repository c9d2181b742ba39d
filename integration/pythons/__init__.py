"""The unit tests on every supported version of Python: `make test-pythons`."""
