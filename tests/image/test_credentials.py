"""Credentials reach the registry they are meant for, and nobody else."""

import base64

import pytest
from structlog.testing import capture_logs

from shim.api.v1 import api_pb2 as pb
from shim.engine.interface import RegistryAuth
from shim.errors import InvalidArgument
from shim.image.credentials import registry_auth, without_secrets

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
def test_forms(given: dict[str, str], expected: dict[str, str]) -> None:
    assert registry_auth(pb.AuthConfig(**given), domain=HOST) == RegistryAuth(**expected, serveraddress=HOST)


@pytest.mark.parametrize(
    "auth",
    [None, pb.AuthConfig(), pb.AuthConfig(password="p"), pb.AuthConfig(server_address=HOST)],
    ids=["none", "empty", "password alone", "address alone"],
)
def test_nothing_given(auth: pb.AuthConfig | None) -> None:
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
        ("", "docker.io", HUB),
        (HUB, "docker.io", HUB),
        ("docker.io", "docker.io", HUB),
        ("registry-1.docker.io", "docker.io", HUB),
    ],
)
def test_meant_for_the_registry(address: str, domain: str, server: str) -> None:
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
        (HUB, HOST),
        (HOST, "docker.io"),
    ],
)
def test_meant_for_another_registry(address: str, domain: str) -> None:
    auth = pb.AuthConfig(username="u", password="s3cret", server_address=address)
    with capture_logs() as logs:
        assert registry_auth(auth, domain=domain) is None
    assert len(logs) == 1
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize(
    "auth", ["s3cret!", encoded("s3cret"), base64.b64encode(b"u:\xff\xfe").decode()], ids=["text", "no colon", "bytes"]
)
def test_malformed_auth_is_named_but_not_shown(auth: str) -> None:
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
def test_without_secrets(auth: RegistryAuth, text: str) -> None:
    shown = without_secrets(text, auth)
    assert "***" in shown
    for secret in ("s3cret", "s3/cret", "s3%2Fcret", "t0ken", encoded("u:s3cret")):
        assert secret not in shown


def test_without_secrets_keeps_the_rest() -> None:
    assert without_secrets("manifest unknown", None) == "manifest unknown"
    assert without_secrets("manifest unknown", RegistryAuth(username="man")) == "manifest unknown"
