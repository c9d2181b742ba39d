"""pydockershim: a Kubernetes CRI v1 server in front of the Docker Engine."""

from importlib.metadata import version

__version__ = version("pydockershim")
