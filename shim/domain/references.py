"""Image references, and the canonical form that the server compares.

The grammar comes from the distribution project (`reference/regexp.go` and `normalize.go` there), and is shared by
Docker, the kubelet and every registry::

    reference = [ domain "/" ] path [ ":" tag ] [ "@" digest ]

`busybox` is the familiar form of `docker.io/library/busybox:latest`, its canonical form.
"""

import re
from dataclasses import dataclass, replace

from shim.domain.errors import InvalidArgument
from shim.domain.ids import ImageId

DEFAULT_DOMAIN = "docker.io"
HUB_HOST = "index.docker.io"
"""Docker Hub's older name. Images use `docker.io`, credentials files still use this name."""
HUB_ADDRESS = f"https://{HUB_HOST}/v1/"
"""Docker Hub's key in Docker's credentials files."""
DEFAULT_TAG = "latest"
MAX_PATH = 255
"""Longest `path` the grammar allows. Docker before 25 counts the domain as well, and reports it."""
MAX_TEXT = 1024
"""Characters of a reference that is parsed; domain, path, tag and digest of a legal reference have at most 775."""

_OFFICIAL = "library/"

_LABEL = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = re.compile(rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha384:[0-9a-f]{96}|sha512:[0-9a-f]{128}")
_ID = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_ID_PREFIX = re.compile(r"(?:sha256:)?([0-9a-f]{1,64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A named image: `domain/path`, optionally with a tag, a digest or both."""

    domain: str
    path: str
    tag: str = ""
    digest: str = ""
    """`sha256:<hex>`, or another algorithm the grammar knows."""

    @property
    def name(self) -> str:
        """Domain and path: the fully qualified repository."""
        return f"{self.domain}/{self.path}"

    @property
    def familiar_name(self) -> str:
        """The repository as Docker shows it."""
        short = self.path.removeprefix(_OFFICIAL)
        for spelling in (short, self.path):
            # `docker.io/foo.bar/app` must keep its domain: `foo.bar` would be taken for a domain.
            if _split_domain(spelling) == (self.domain, self.path):
                return spelling
        return self.name

    def __str__(self) -> str:
        return self.name + self._suffix()

    def familiar(self) -> str:
        """Return the reference as Docker shows it: `busybox:1.36` for `docker.io/library/busybox:1.36`."""
        return self.familiar_name + self._suffix()

    def _suffix(self) -> str:
        return (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")


def parse(text: str) -> Reference:
    """Parse a reference in any form; adds no tag. Raise InvalidArgument with the malformed part."""
    if not text:
        raise InvalidArgument("image reference is empty")
    if len(text) > MAX_TEXT:
        raise InvalidArgument(f"image reference {text[:80]!r}... has {len(text)} characters, at most {MAX_TEXT}")
    if _ID.fullmatch(text) and ":" not in text:
        raise InvalidArgument(f"image reference {text!r} is an image id, not a name")
    rest, at, digest = text.partition("@")
    if at and not _DIGEST.fullmatch(digest):
        raise InvalidArgument(f"image reference {text!r} has a malformed digest {digest!r}")
    name, tag = split_tag(rest)
    if tag is not None and not _TAG.fullmatch(tag):
        raise InvalidArgument(f"image reference {text!r} has a malformed tag {tag!r}")
    domain, path = _split_domain(name)
    _check_name(domain, path, text=text)
    return Reference(domain=domain, path=path, tag=tag or "", digest=digest)


def canonical(text: str) -> str:
    """Return the canonical form of a reference for comparison: `docker.io/library/busybox:latest`.

    Drops the tag of a reference with a digest: the tag may have moved, and Docker ignores it as well.
    """
    reference = parse(text)
    if reference.digest:
        return str(replace(reference, tag=""))
    return str(replace(reference, tag=reference.tag or DEFAULT_TAG))


def familiar(text: str) -> str:
    """Return a reference as Docker shows it: `busybox:latest`. Adds no tag."""
    return parse(text).familiar()


def image_id(text: str) -> ImageId | None:
    """Return the id for `sha256:<64 hex>` or 64 bare hexadecimal digits; None for anything else."""
    match = _ID.fullmatch(text)
    return ImageId(f"sha256:{match[1]}") if match else None


def image_id_prefix(text: str) -> str | None:
    """Return `sha256:` and the digits of a text that may be a prefix of an image id; None for anything else."""
    match = _ID_PREFIX.fullmatch(text)
    return f"sha256:{match[1]}" if match else None


def split_tag(rest: str) -> tuple[str, str | None]:
    """Split off the tag: the part after the last colon, unless it contains a slash (then the colon precedes a port)."""
    name, colon, tag = rest.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (rest, None)


def _split_domain(name: str) -> tuple[str, str]:
    """Split `registry:5000/app`, but not `user/app`: a dot, a port, `localhost` or a capital marks a domain."""
    first, slash, path = name.partition("/")
    is_domain = slash and (first == "localhost" or first != first.lower() or any(sign in first for sign in ".:["))
    domain = first if is_domain else DEFAULT_DOMAIN
    if not is_domain:
        path = name
    if domain == HUB_HOST:
        domain = DEFAULT_DOMAIN
    if domain == DEFAULT_DOMAIN and "/" not in path:
        path = _OFFICIAL + path
    return domain, path


def _check_name(domain: str, path: str, *, text: str) -> None:
    if not _DOMAIN.fullmatch(domain):
        raise InvalidArgument(f"image reference {text!r} has a malformed registry {domain!r}")
    if not _PATH.fullmatch(path):
        if _PATH.fullmatch(path.lower()):
            raise InvalidArgument(f"image reference {text!r} has capitals in its repository {path!r}")
        raise InvalidArgument(f"image reference {text!r} has a malformed repository {path!r}")
    if len(path) > MAX_PATH:
        raise InvalidArgument(f"image reference {text!r} has a repository of more than {MAX_PATH} characters")
