"""Errors of the Engine that callers distinguish, in addition to `shim.domain.errors`."""

from shim.domain.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ShimError


class NameConflict(AlreadyExists):
    """The container name is taken; `holder` is the id of its container, if Docker reports it."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class RemovalInProgress(FailedPrecondition):
    """The container is already being removed."""


class ChangedMeanwhile(ShimError):
    """Docker gave up a read because the object changed meanwhile. The next read mostly succeeds."""


class NoCommand(InvalidArgument):
    """Neither the container nor its image names a program."""


class LogOptionsClash(InvalidArgument):
    """An option of dockerd's log-opts conflicts with the log options of the container."""


class MountNameTooLong(FailedPrecondition):
    """Docker cannot mount an image: its name for the mount is too long for a file name."""


class RegistryUnavailable(ShimError):
    """The registry refused the connection, could not be reached, timed out or answered 5xx."""


class TooManyRequests(RegistryUnavailable):
    """The registry got too many requests from this account or address."""


class RegistryDenied(ShimError):
    """The registry requires credentials or rejected them."""


class RegistryErrorUnknown(ShimError):
    """The registry refused the image and the Engine does not report why; other credentials may work."""
