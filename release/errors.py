"""The one error of a build."""


class BuildError(Exception):
    """A build cannot go on; the message says on what, and what to do."""
