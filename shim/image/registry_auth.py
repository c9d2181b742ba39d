"""Converts credentials of the CRI and of the node's keyring to the Engine's form, and redacts them in messages."""

import base64
from urllib.parse import quote, urlsplit

import structlog

from shim.api.v1 import api_pb2 as pb
from shim.credentials.model import Credentials, pair_from_base64
from shim.domain.errors import InvalidArgument
from shim.domain.references import DEFAULT_DOMAIN, HUB_ADDRESS, HUB_HOST
from shim.engine.interface import RegistryAuth

log = structlog.get_logger(__name__)

_DOCKER_HUB_HOSTS = frozenset({DEFAULT_DOMAIN, HUB_HOST, "registry-1.docker.io", "registry.hub.docker.com"})
_DEFAULT_PORTS = {"https": ":443", "http": ":80"}
_SECRET = 4
"""Minimum length of a redacted secret; shorter secrets would redact innocent words."""


def registry_auth(auth: pb.AuthConfig | None, *, domain: str) -> RegistryAuth | None:
    """Return the credentials of a PullImage in the Engine's form, for `domain`, the registry of the image.

    Return None if there are none, or if they are for another server: as in containerd, the pull then continues without
    credentials. All fields are passed on; the Engine prefers tokens if the registry supports them.
    """
    if auth is None or not is_given(auth):
        return None
    if other := other_registry(auth, domain=domain):
        log.info("credentials are for another registry", registry=domain, meant_for=other)
        return None
    username, password = auth.username, auth.password
    if auth.auth and not username:
        username, password = _decode(auth.auth)
    given = Credentials(
        username=username,
        password=password,
        identity_token=auth.identity_token,
        registry_token=auth.registry_token,
    )
    return engine_auth(given, domain=domain)


def other_registry(auth: pb.AuthConfig | None, *, domain: str) -> str:
    """Return the credentials' host if it differs from `domain`, else "".

    Raise InvalidArgument for a malformed address. The error does not quote it, because it may contain a password.
    """
    if auth is None or not is_given(auth) or not auth.server_address:
        return ""
    address = auth.server_address
    try:
        scheme = urlsplit(address).scheme if "://" in address else "https"
        if _host(_netloc(address), scheme=scheme) == _host(domain, scheme=scheme):
            return ""
        # A password in the address may contain a slash, so everything before the last @ is hidden.
        return _host(_netloc(address.rpartition("@")[2]), scheme=scheme)
    except ValueError:
        raise InvalidArgument("auth.server_address is malformed") from None


def engine_auth(credentials: Credentials, *, domain: str) -> RegistryAuth:
    """Return credentials for the registry `domain` in the Engine's form."""
    return RegistryAuth(
        username=credentials.username,
        password=credentials.password,
        identitytoken=credentials.identity_token,
        registrytoken=credentials.registry_token,
        # Without an address, Docker's containerd store assumes Docker Hub.
        serveraddress=HUB_ADDRESS if domain == DEFAULT_DOMAIN else domain,
    )


def without_secrets(text: str, auth: RegistryAuth | None) -> str:
    """Redact the credentials in a text of a registry, which may echo them."""
    if auth is None:
        return text
    pair = base64.b64encode(f"{auth.username}:{auth.password}".encode()).decode()
    for secret in (pair, auth.password, auth.identitytoken, auth.registrytoken):
        if len(secret) >= _SECRET:
            text = text.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return text


def is_given(auth: pb.AuthConfig) -> bool:
    """Return whether `auth` contains credentials."""
    return bool(auth.username or auth.auth or auth.identity_token or auth.registry_token)


def _netloc(address: str) -> str:
    """Return the part of an address between scheme and path. Both may be missing."""
    return urlsplit(address if "://" in address else f"//{address}").netloc


def _host(netloc: str, *, scheme: str) -> str:
    """Return host and port without credentials, and without the scheme's default port."""
    host = netloc.lower().rpartition("@")[2].removesuffix(_DEFAULT_PORTS.get(scheme, ":443"))
    return DEFAULT_DOMAIN if host in _DOCKER_HUB_HOSTS else host


def _decode(auth: str) -> tuple[str, str]:
    try:
        return pair_from_base64(auth)
    except ValueError as failure:
        raise InvalidArgument(f"auth.auth is {failure}") from None
