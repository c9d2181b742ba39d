"""The errors of the domain, independent of any transport.

`shim/cri/grpc_codes.py` maps each class to a gRPC code. Adapters (Engine, CNI, netlink, disk) turn foreign exceptions
into these classes, with the cause chained. Messages are lower case: the operation and its id or file, then the cause.
They may reach clients and logs, so they never hold a secret.
"""


class ShimError(Exception):
    """Base of every expected failure."""


class NotFound(ShimError):
    """The named object does not exist."""


class AlreadyExists(ShimError):
    """The name is taken by another object."""


class InvalidArgument(ShimError):
    """The request itself is wrong; the message names the field."""


class FailedPrecondition(ShimError):
    """The request is valid, but the state of the object or the node does not allow it."""


class DeadlineExceeded(ShimError):
    """The time limit of the client or of a setting has expired."""


class Cancelled(ShimError):
    """The client went away during its request."""


class Unavailable(ShimError):
    """Docker cannot be reached; the same request may succeed later."""


class ResourceExhausted(ShimError):
    """A limit on count or size is reached."""


class Unsupported(ShimError):
    """This server, Engine or kernel cannot fulfil the request; the message names the obstacle."""


def reason_of(error: OSError) -> str:
    """Return the reason of a system error in lower case, without the file."""
    return (error.strerror or str(error)).lower()
