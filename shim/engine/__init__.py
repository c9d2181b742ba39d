"""The Docker Engine, seen through its HTTP API. Only this package knows the `docker` and `requests` libraries."""
