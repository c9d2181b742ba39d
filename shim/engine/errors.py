"""Failures of the Engine that the domain distinguishes, beyond the classes of `shim.domain.errors`."""

from shim.domain.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ShimError


class NameConflict(AlreadyExists):
    """The container name is taken; `holder` is the id of the container that has it, if Docker reported it."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class RemovalInProgress(FailedPrecondition):
    """This container is being removed already."""


class NoCommand(InvalidArgument):
    """Neither the container to be made nor its image names a program."""


class LogOptionsClash(InvalidArgument):
    """Docker has merged an option of its own configuration into those of a log, and refuses the two together."""


class MountNameTooLong(FailedPrecondition):
    """Docker cannot mount an image: the name that it gives the mount is longer than that of a file may be."""


class RegistryUnavailable(ShimError):
    """The registry refused the connection, could not be reached, timed out or answered 5xx."""


class TooManyRequests(RegistryUnavailable):
    """The registry has had too many requests: of this account, or from this address."""


class RegistryDenied(ShimError):
    """The registry did not accept the credentials, or wants some."""


class RegistryErrorUnknown(ShimError):
    """The registry refused the image, and the Engine does not report why: it may want other credentials."""
