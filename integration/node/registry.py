"""A private image registry on a loopback port, which Docker accepts without TLS or with a self-signed certificate."""

import http.client
import os
import socket
import ssl
from pathlib import Path

import docker
import msgspec

from integration.node.commands import NodeError, run
from integration.node.daemon import Daemon

_START_SECONDS = 60
_STOP_SECONDS = 60

USER = "kubelet"
PASSWORD = "open sesame"
_HTPASSWD = "kubelet:$2b$05$abcdefghijklmnopqrstuupx2xBUC4954936wVIjyyPHmUBFu0wCW"
"""The line for USER and PASSWORD. Precomputed: Python has no bcrypt, the only scheme that the registry accepts."""


class Registry:
    """A registry; with `private` only USER with PASSWORD may push and pull, with `tls` it speaks only TLS.

    It listens on `address`, by default on a free port.
    """

    def __init__(
        self, program: Path, *, home: Path, private: bool = False, tls: bool = False, address: str = ""
    ) -> None:
        home.mkdir(parents=True)
        self._tls = tls
        self.address = address or f"127.0.0.1:{free_port()}"
        self.auth_config = {"username": USER, "password": PASSWORD} if private else None
        (home / "htpasswd").write_text(_HTPASSWD + "\n")
        # The registry reads YAML, and JSON is a subset of YAML.
        (home / "config.yml").write_bytes(msgspec.json.encode(self._configuration(home)))
        self.daemon = Daemon([program, "serve", home / "config.yml"], log=home / "registry.log", env=dict(os.environ))

    def _configuration(self, home: Path) -> dict[str, object]:
        settings: dict[str, object] = {
            "version": "0.1",
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(home / "data")}, "delete": {"enabled": True}},
            "http": {"addr": self.address},
        }
        if self._tls:
            certificate, key = make_certificate(home)
            settings["http"] = {"addr": self.address, "tls": {"certificate": str(certificate), "key": str(key)}}
        if self.auth_config is not None:
            settings["auth"] = {"htpasswd": {"realm": "pydockershim", "path": str(home / "htpasswd")}}
        return settings

    def start(self) -> None:
        """Start the registry and wait until it answers."""
        self.daemon.start(ready=lambda: _answers(self.address, tls=self._tls), timeout=_START_SECONDS)

    def stop(self) -> None:
        """Stop the registry; pushed images stay until the run ends."""
        self.daemon.stop(timeout=_STOP_SECONDS)

    def push(self, api: docker.APIClient, image: str, *, name: str) -> str:
        """Push a local image as `<registry>/<name>` and return that reference.

        `name` may include a tag (default `latest`). The local tag for the push is removed again, so that a pull of the
        reference really downloads.
        """
        repository, _, tag = name.partition(":")
        reference = f"{self.address}/{repository}:{tag or 'latest'}"
        api.tag(image, f"{self.address}/{repository}", tag or "latest")
        for line in api.push(reference, stream=True, decode=True, auth_config=self.auth_config):
            if "error" in line:
                raise NodeError(f"push {reference}: {line['error']}")
        api.remove_image(reference)
        return reference


def free_port() -> int:
    """Return a loopback port without a listener; in these namespaces no other program takes one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def make_certificate(home: Path) -> tuple[Path, Path]:
    """Create a self-signed certificate for the loopback address; needs openssl."""
    certificate, key = home / "certificate.pem", home / "key.pem"
    subject = ["-subj", "/CN=registry", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "rsa:2048", "-nodes", "-days", "1"]
    run(["openssl", "req", "-x509", *subject, *kind, "-keyout", key, "-out", certificate], timeout=_START_SECONDS)
    return certificate, key


def _answers(address: str, *, tls: bool) -> bool:
    connection = http.client.HTTPConnection(address, timeout=5)
    if tls:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, timeout=5, context=context)
    try:
        connection.request("GET", "/v2/")
        return connection.getresponse().status in {200, 401}
    except OSError:
        return False
    finally:
        connection.close()
