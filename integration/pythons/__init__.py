"""The unit tests on every version of Python that is promised: `make test-pythons`."""
