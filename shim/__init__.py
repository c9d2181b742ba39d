"""pydockershim: a Kubernetes CRI v1 server in front of the Docker Engine."""


def __getattr__(name: str) -> str:
    # On demand: reading the version loads email and zipfile, which the helper processes do not need.
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import version  # noqa: PLC0415

    return version("pydockershim")
