"""The errors of the domain, independent of any transport.

`shim/cri/status.py` maps each class to a gRPC code; foreign exceptions are turned into one of these where they
enter (engine, CNI, netlink, disk), with the cause chained. Messages are lower case: the operation and its id
or file, then the cause. They may reach a client and a log, so they never hold a secret.
"""


class ShimError(Exception):
    """Base of every expected failure."""


class NotFound(ShimError):
    """The object that was named does not exist."""


class AlreadyExists(ShimError):
    """The name is taken by another object."""


class InvalidArgument(ShimError):
    """The request itself is wrong; the message names the field."""


class FailedPrecondition(ShimError):
    """The request is right, the state of the object or of the node does not allow it."""


class DeadlineExceeded(ShimError):
    """The time limit of the client or of a setting is over."""


class Cancelled(ShimError):
    """The client went away while its request was under way."""


class Unavailable(ShimError):
    """Docker cannot be reached; the same request may succeed later."""


class ResourceExhausted(ShimError):
    """A limit on count or size is reached."""


class Unsupported(ShimError):
    """This shim, Engine or kernel cannot do what was asked; the message names it."""


def reason_of(error: OSError) -> str:
    """Return the reason of an error of the system, in lower case and without the file."""
    return (error.strerror or str(error)).lower()
