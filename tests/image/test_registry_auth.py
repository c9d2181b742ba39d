"""Credentials reach the registry they are for, and no other."""

import base64

import pytest
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import InvalidArgument
from shim.engine.interface import RegistryAuth
from shim.image.registry_auth import other_registry, registry_auth, without_secrets

HOST = "registry.example:5000"
HUB = "https://index.docker.io/v1/"


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        pytest.param({"username": "u", "password": "p"}, {"username": "u", "password": "p"}, id="user and password"),
        pytest.param({"username": "u"}, {"username": "u"}, id="empty password"),
        pytest.param({"auth": encoded("u:p:q")}, {"username": "u", "password": "p:q"}, id="auth"),
        pytest.param({"auth": encoded("u:p\0\0")}, {"username": "u", "password": "p"}, id="auth padded with NUL"),
        pytest.param({"auth": encoded("ü:pä")}, {"username": "ü", "password": "pä"}, id="auth in UTF-8"),
        pytest.param(
            {"username": "u", "password": "p", "auth": encoded("other:secret")},
            {"username": "u", "password": "p"},
            id="user beats auth",
        ),
        pytest.param({"identity_token": "t"}, {"identitytoken": "t"}, id="identity token"),
        pytest.param({"registry_token": "t"}, {"registrytoken": "t"}, id="registry token"),
    ],
)
def test_credentials_are_accepted_in_each_form(given: dict[str, str], expected: dict[str, str]) -> None:
    assert registry_auth(pb.AuthConfig(**given), domain=HOST) == RegistryAuth(**expected, serveraddress=HOST)


@pytest.mark.parametrize(
    "auth",
    [None, pb.AuthConfig(), pb.AuthConfig(password="p"), pb.AuthConfig(server_address=HOST)],
    ids=["none", "empty", "password alone", "address alone"],
)
def test_empty_credentials_count_as_none(auth: pb.AuthConfig | None) -> None:
    assert registry_auth(auth, domain=HOST) is None


@pytest.mark.parametrize(
    ("address", "domain", "server"),
    [
        ("", HOST, HOST),
        (HOST, HOST, HOST),
        (f"https://{HOST}", HOST, HOST),
        (f"http://{HOST}/v2/", HOST, HOST),
        ("Registry.Example:5000", HOST, HOST),
        ("[::1]:5000", "[::1]:5000", "[::1]:5000"),
        ("https://r.example:443/v2/", "r.example", "r.example"),
        ("r.example:443", "r.example", "r.example"),
        ("https://r.example/", "r.example:443", "r.example:443"),
        ("r.example", "r.example:443", "r.example:443"),
        ("http://r.example:80/v2/", "r.example", "r.example"),
        ("http://r.example:80/v2/", "r.example:80", "r.example:80"),
        ("[::1]:443", "[::1]", "[::1]"),
        ("https://index.docker.io:443/v1/", "docker.io", HUB),
        ("", "docker.io", HUB),
        (HUB, "docker.io", HUB),
        ("docker.io", "docker.io", HUB),
        ("registry-1.docker.io", "docker.io", HUB),
    ],
)
def test_credentials_for_the_registry_are_used(address: str, domain: str, server: str) -> None:
    auth = registry_auth(pb.AuthConfig(username="u", server_address=address), domain=domain)
    assert auth == RegistryAuth(username="u", serveraddress=server)


@pytest.mark.parametrize(
    ("address", "domain"),
    [
        ("other.example", HOST),
        ("registry.example", HOST),
        ("registry.example:5001", HOST),
        (f"https://{HOST}.evil.example", HOST),
        (f"https://{HOST}@evil.example/", HOST),
        ("https://r.example:80/", "r.example"),
        ("http://r.example:443/", "r.example"),
        ("https://r.example:8443/", "r.example"),
        ("https://r.example:4443/", "r.example:4"),
        (HUB, HOST),
        (HOST, "docker.io"),
    ],
)
def test_credentials_for_another_registry_are_not_used(address: str, domain: str) -> None:
    auth = pb.AuthConfig(username="u", password="s3cret", server_address=address)
    with capture_logs() as logs:
        assert registry_auth(auth, domain=domain) is None
    assert len(logs) == 1
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("other.example", "other.example"),
        ("https://Other.example:443/v2/", "other.example"),
        ("http://other.example:5001/v2/", "other.example:5001"),
        ("https://u:s3cret@other.example/", "other.example"),
        ("https://u:s3cret/x@other.example/", "other.example"),
        (HUB, "docker.io"),
        (HOST, ""),
        ("", ""),
    ],
)
def test_the_error_names_the_other_registry_and_no_secret(address: str, host: str) -> None:
    auth = pb.AuthConfig(username="u", password="s3cret", server_address=address)
    assert other_registry(auth, domain=HOST) == host


@pytest.mark.parametrize(
    "address",
    ["[::1", "https://u:s3cret\u2100ss@r.example", "https://u:s3[cret@r.example", "https://u:s]3@cret[@r.example"],
    ids=["bracket", "compatibility character", "bracket in the password", "several"],
)
def test_malformed_address_is_reported_but_not_shown(address: str) -> None:
    auth = pb.AuthConfig(username="u", password="p", server_address=address)
    for ask in (registry_auth, other_registry):
        with pytest.raises(InvalidArgument, match=r"^auth.server_address is malformed$") as caught:
            ask(auth, domain=HOST)
        assert caught.value.__suppress_context__


def test_repository_that_resembles_an_address_is_accepted() -> None:  # the grammar of references allows it
    auth = pb.AuthConfig(username="u", server_address="r.example")
    assert other_registry(auth, domain="[abc]:5000") == "r.example"


def test_no_credentials_are_for_no_registry() -> None:
    assert other_registry(None, domain=HOST) == ""
    assert other_registry(pb.AuthConfig(server_address="other.example"), domain=HOST) == ""


@pytest.mark.parametrize(
    "auth", ["s3cret!", encoded("s3cret"), base64.b64encode(b"u:\xff\xfe").decode()], ids=["text", "no colon", "bytes"]
)
def test_malformed_auth_is_reported_but_not_shown(auth: str) -> None:
    with pytest.raises(InvalidArgument, match=r"auth\.auth is not base64") as caught:
        registry_auth(pb.AuthConfig(auth=auth), domain=HOST)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("auth", "text"),
    [
        (RegistryAuth(username="u", password="s3cret"), "bad password s3cret"),
        (RegistryAuth(username="u", password="s3/cret"), "GET https://r/?password=s3%2Fcret"),
        (RegistryAuth(username="u", password="s3cret"), f"Authorization: Basic {encoded('u:s3cret')}"),
        (RegistryAuth(identitytoken="t0ken"), "refresh t0ken failed"),
        (RegistryAuth(registrytoken="t0ken"), "Bearer t0ken"),
    ],
    ids=["plain", "in an url", "basic", "identity token", "registry token"],
)
def test_secrets_are_redacted(auth: RegistryAuth, text: str) -> None:
    shown = without_secrets(text, auth)
    assert "***" in shown
    for secret in ("s3cret", "s3/cret", "s3%2Fcret", "t0ken", encoded("u:s3cret")):
        assert secret not in shown


def test_other_text_is_not_redacted() -> None:
    assert without_secrets("manifest unknown", None) == "manifest unknown"
    assert without_secrets("manifest unknown", RegistryAuth(username="man")) == "manifest unknown"
