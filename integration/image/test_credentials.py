"""Pulls without credentials use the node's: from files, credential helpers and provider plugins."""

import base64
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from integration.conftest import Images, NodeDirs
from integration.cri import HOST_NETWORK, Cri, connected, pod_config
from integration.image.conftest import Publish
from integration.node.engine import Engine
from integration.node.registry import PASSWORD, USER, Registry
from integration.server import Server
from shim.api.v1 import api_pb2 as pb
from shim.credentials.config_json import search_paths
from shim.credentials.keyring import Keyring
from shim.credentials.provider import Provider
from shim.credentials.provider_config import read_providers
from shim.domain.errors import ShimError
from shim.engine.errors import RegistryDenied
from shim.image.ensure import ensure_image
from shim.image.pull import pull_image
from shim.image.remove import remove_image
from shim.runtime import ImagePuller, Runtime

AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
WRONG = "wr0ng pa55word"


def pull(rt: Runtime, reference: str, *, keyring: Keyring) -> str:
    """Pull without credentials in the request, and remove the image. No secret may be in the log."""
    with capture_logs() as logs:
        image_id = pull_image(
            replace(rt, puller=ImagePuller(keyring=keyring)), image=pb.ImageSpec(image=reference), auth=None
        )
    assert not [secret for secret in (PASSWORD, WRONG, AUTH) if secret in str(logs)]
    remove_image(rt, image=pb.ImageSpec(image=image_id))
    return str(next(line["credentials"] for line in logs if line["event"] == "pulled image"))


def file_with(path: Path, **auths: object) -> Path:
    """Write credentials by location, in the format that the file's name implies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": auths} if path.name == "config.json" else auths))
    return path


def program(path: Path, answer: object) -> Path:
    """Make an executable that prints `answer` for every request."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat >{path}.asked\ncat <<'END'\n{json.dumps(answer)}\nEND\n")
    path.chmod(0o755)
    return path


def provider_config(directory: Path, *, registry: Registry, version: str = "v1", auth: object = None) -> Path:
    """Write a plugin `login` and a configuration that uses it for the registry; return the configuration."""
    answer = {
        "apiVersion": f"credentialprovider.kubelet.k8s.io/{version}",
        "kind": "CredentialProviderResponse",
        "cacheKeyType": "Registry",
        "auth": auth or {registry.address: {"username": USER, "password": PASSWORD}},
    }
    program(directory / "bin/login", answer)
    config = directory / "providers.yaml"
    config.write_text(
        f"""
apiVersion: kubelet.config.k8s.io/{version}
kind: CredentialProviderConfig
providers:
  - name: login
    matchImages: ["{registry.address}"]
    defaultCacheDuration: 1m
    apiVersion: credentialprovider.kubelet.k8s.io/{version}
"""
    )
    return config


def providers(config: Path) -> list[Provider]:
    return [Provider(settings) for settings in read_providers(config, bin_dir=config.parent / "bin")]


# --- pulls on a real engine -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(8))
def test_a_pull_uses_credentials_of_every_location_and_format(
    rt: Runtime, publish: Publish, private_registry: Registry, tmp_path: Path, number: int
) -> None:
    reference = publish(f"place-{number}:1", private=True)
    places = search_paths(
        kubelet_root=tmp_path / "kubelet", working=tmp_path / "work", home=tmp_path / "home", root=tmp_path / "root"
    )
    file_with(places[number], **{f"http://{private_registry.address}/v2/": {"auth": AUTH}})
    assert pull(rt, reference, keyring=Keyring(paths=places)) == f"{places[number]} for {private_registry.address}"


@pytest.mark.parametrize(
    "location",
    ["{}", "{}/places", "127.0.*.1:{port}", "*.*.*.*:{port}/places/app"],
    ids=["host", "path", "pattern", "pattern and path"],
)
def test_an_entry_applies_to_its_registry_and_path(
    rt: Runtime, publish: Publish, private_registry: Registry, tmp_path: Path, location: str
) -> None:
    reference = publish("places/app:1", private=True)
    address = private_registry.address
    named = location.format(address, port=address.rpartition(":")[2])
    file = file_with(tmp_path / "config.json", **{named: {"auth": AUTH}})
    assert pull(rt, reference, keyring=Keyring(paths=[file])) == f"{file} for {named}"


def test_several_credentials_are_tried_in_turn(
    rt: Runtime, publish: Publish, private_registry: Registry, tmp_path: Path
) -> None:
    reference = publish("turns/app:1", private=True)
    address = private_registry.address
    wrong = {"username": USER, "password": WRONG}
    file = file_with(
        tmp_path / "config.json",
        **{f"{address}/turns/app": wrong, f"{address}/turns": {"username": "other"}, address: {"auth": AUTH}},
    )
    assert pull(rt, reference, keyring=Keyring(paths=[file])) == f"{file} for {address}"


@contextmanager
def guarding(upstream: str, *, status: int, body: bytes) -> Iterator[str]:
    """Serve the registry `upstream` to USER, and this answer to other logins; yields the address."""

    class Guard(BaseHTTPRequestHandler):
        default_request_version = "HTTP/1.1"

        def do_GET(self) -> None:
            login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
            user = login.partition(":")[0]
            if not user:
                self.answer(401, ("WWW-Authenticate", 'Basic realm="tests"'))
            elif self.path.rstrip("/") == "/v2":
                self.answer(200)
            elif user == USER:
                self.answer(307, ("Location", f"http://{upstream}{self.path}"))
            else:
                self.answer(status, ("Content-Type", "application/json"), body=body)

        do_HEAD = do_GET  # noqa: N815 - named by http.server

        def answer(self, status: int, *headers: tuple[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in (*headers, ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body if self.command == "GET" else b"")

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Guard) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "body"), [(403, b"{}"), (403, b""), (403, b"<html>Sorry</html>"), (404, b"{}"), (404, b"")]
)
def test_a_refusal_with_an_unusual_status_or_body_is_recognised(
    rt: Runtime, publish: Publish, registry: Registry, tmp_path: Path, status: int, body: bytes
) -> None:
    reference = publish("guarded/app:1")
    with guarding(registry.address, status=status, body=body) as address:
        wrong = {"username": "other", "password": WRONG}
        right = {"username": USER, "password": PASSWORD}
        file = file_with(tmp_path / "config.json", **{f"{address}/guarded": wrong, address: right})
        guarded = reference.replace(registry.address, address)
        assert pull(rt, guarded, keyring=Keyring(paths=[file])) == f"{file} for {address}"


@pytest.mark.parametrize("key", ["credHelpers", "credsStore"])
def test_a_pull_uses_a_credential_helper(
    rt: Runtime,
    publish: Publish,
    private_registry: Registry,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
) -> None:
    reference = publish("stored:1", private=True)
    address = private_registry.address
    store = program(tmp_path / "bin/docker-credential-keep", {"Username": USER, "Secret": PASSWORD})
    monkeypatch.setenv("PATH", f"{store.parent}{os.pathsep}{os.environ['PATH']}")
    file = tmp_path / "config.json"
    file.write_text(json.dumps({key: {address: "keep"} if key == "credHelpers" else "keep"}))
    assert pull(rt, reference, keyring=Keyring(paths=[file])) == f"docker-credential-keep for {address}"
    assert Path(f"{store}.asked").read_text() == address


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_a_pull_uses_a_provider_plugin(
    rt: Runtime, publish: Publish, private_registry: Registry, tmp_path: Path, version: str
) -> None:
    reference = publish("provided:1", private=True)
    config = provider_config(tmp_path, registry=private_registry, version=version)
    source = pull(rt, reference, keyring=Keyring(providers=providers(config)))
    assert source == f"credential provider login for {private_registry.address}"
    asked = json.loads((tmp_path / "bin/login.asked").read_text())
    assert asked["image"] == reference.rpartition(":")[0]


@pytest.mark.parametrize(
    "auth", [{}, {"auth": AUTH[:-8]}, {"username": USER, "password": WRONG}], ids=["none", "bad", "wrong"]
)
def test_a_pull_with_wrong_credentials_is_denied(
    rt: Runtime, publish: Publish, private_registry: Registry, tmp_path: Path, auth: object
) -> None:
    reference = publish("closed:1", private=True)
    file = file_with(tmp_path / "config.json", **{private_registry.address: auth})
    with pytest.raises(RegistryDenied, match="unauthorized: ") as caught, capture_logs() as logs:
        pull(rt, reference, keyring=Keyring(paths=[file]))
    assert not [secret for secret in (PASSWORD, WRONG, AUTH[:-8]) if secret in f"{caught.value} {logs}"]


def test_the_pause_image_is_pulled_with_credentials(
    rt: Runtime, publish: Publish, private_registry: Registry, tmp_path: Path
) -> None:
    reference = publish("pause:1", private=True)
    file = file_with(tmp_path / "config.json", **{private_registry.address: {"auth": AUTH}})
    image = ensure_image(replace(rt, puller=ImagePuller(keyring=Keyring(paths=[file]))), reference=reference)
    remove_image(rt, image=pb.ImageSpec(image=image.id))


def test_a_pull_from_a_tls_registry_uses_credentials(
    rt: Runtime, engine: Engine, images: Images, tls_registry: Registry, tmp_path: Path
) -> None:
    reference = tls_registry.push(engine.api, images.busybox, name="secured:1")
    file = file_with(tmp_path / "config.json", **{f"https://{tls_registry.address}": {"auth": AUTH}})
    keyring = Keyring(paths=[file])
    pull_image(replace(rt, puller=ImagePuller(keyring=keyring)), image=pb.ImageSpec(image=reference), auth=None)
    engine.api.remove_image(reference)


def test_several_credentials_are_tried_in_turn_with_tls(
    rt: Runtime, engine: Engine, images: Images, tls_registry: Registry, tmp_path: Path
) -> None:
    reference = tls_registry.push(engine.api, images.busybox, name="team/secured:1")
    wrong = {"username": USER, "password": WRONG}
    entries = {f"{tls_registry.address}/team": wrong, tls_registry.address: {"auth": AUTH}}
    keyring = Keyring(paths=[file_with(tmp_path / "config.json", **entries)])
    pull_image(replace(rt, puller=ImagePuller(keyring=keyring)), image=pb.ImageSpec(image=reference), auth=None)
    engine.api.remove_image(reference)


def test_a_pull_from_a_tls_registry_without_credentials_is_denied(
    rt: Runtime, engine: Engine, images: Images, tls_registry: Registry
) -> None:
    reference = tls_registry.push(engine.api, images.busybox, name="secured:2")
    # Engine 20.10 then tries plain HTTP, and reports only that failure.
    words = (
        "credentials may be missing" if engine.name == "20.10" else "requires credentials, but none were given or found"
    )
    with pytest.raises(ShimError, match=words):
        pull_image(rt, image=pb.ImageSpec(image=reference), auth=None)


# --- a whole server ---------------------------------------------------------------------------------------


@contextmanager
def serving(engine: Engine, dirs: NodeDirs, **settings: object) -> Iterator[Cri]:
    """Run a server whose log must not show a secret."""
    values = {
        "docker-endpoint": engine.url,
        "root-directory": dirs.state,
        "netns-directory": dirs.netns,
        "cni-conf-dir": dirs.cni_conf,
        "cni-cache-dir": dirs.cni_cache,
        "log-level": "debug",
        **{name.replace("_", "-"): value for name, value in settings.items()},
    }
    log = dirs.state.with_name("server.log")
    server = Server(values, socket=dirs.socket, log=log, forked=True)
    server.start()
    try:
        with connected(dirs.socket) as cri:
            yield cri
    finally:
        server.stop()
    assert not [secret for secret in (PASSWORD, WRONG, AUTH) if secret in log.read_text()]


def pull_as_crictl(cri: Cri, reference: str) -> str:
    return cri.images.PullImage(pb.PullImageRequest(image=pb.ImageSpec(image=reference))).image_ref


def test_a_server_pulls_with_credentials_of_a_file(
    engine: Engine, images: Images, node_dirs: NodeDirs, private_registry: Registry, publish: Publish, tmp_path: Path
) -> None:
    pause = private_registry.push(engine.api, images.pause, name="node/pause:1")
    reference = publish("node/app:1", private=True)
    file_with(tmp_path / "kubelet/config.json", **{f"{private_registry.address}/node": {"auth": AUTH}})
    settings = {"kubelet_root_dir": tmp_path / "kubelet", "pod_infra_container_image": pause}
    with serving(engine, node_dirs, **settings) as cri:
        assert not engine.api.images(pause)
        sandbox = cri.run(pod_config("paused", linux=HOST_NETWORK))
        status = cri.images.ImageStatus(pb.ImageStatusRequest(image=pb.ImageSpec(image=pause)))
        assert status.image.pinned
        image_id = pull_as_crictl(cri, reference)
        cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=image_id)))
        cri.stop(sandbox)
        cri.remove(sandbox)
        engine.api.remove_image(pause)


def test_a_server_pulls_with_credentials_of_a_provider(
    engine: Engine, node_dirs: NodeDirs, private_registry: Registry, publish: Publish, tmp_path: Path
) -> None:
    reference = publish("provided-to-server:1", private=True)
    settings = {
        "image_credential_provider_config": provider_config(tmp_path, registry=private_registry),
        "image_credential_provider_bin_dir": tmp_path / "bin",
        "pinned_images": f"{private_registry.address}/provided-to-*",
    }
    with serving(engine, node_dirs, **settings) as cri:
        image_id = pull_as_crictl(cri, reference)
        (image,) = cri.images.ListImages(
            pb.ListImagesRequest(filter=pb.ImageFilter(image=pb.ImageSpec(image=reference)))
        ).images
        assert (image.id, image.pinned) == (image_id, True)
        cri.images.RemoveImage(pb.RemoveImageRequest(image=pb.ImageSpec(image=image_id)))


def test_secrets_that_a_plugin_prints_are_not_logged(
    engine: Engine, node_dirs: NodeDirs, private_registry: Registry, publish: Publish, tmp_path: Path
) -> None:
    reference = publish("leaking:1", private=True)
    config = provider_config(tmp_path, registry=private_registry)
    (tmp_path / "bin/login").write_text(
        f"#!/bin/sh\necho 'access denied to {PASSWORD}, {AUTH}' | tee /dev/stderr\nexit 1\n"
    )
    settings = {
        "kubelet_root_dir": tmp_path / "nothing",
        "image_credential_provider_config": config,
        "image_credential_provider_bin_dir": tmp_path / "bin",
    }
    with (
        serving(engine, node_dirs, **settings) as cri,
        pytest.raises(grpc.RpcError, match="requires credentials") as denied,
    ):
        pull_as_crictl(cri, reference)
    assert PASSWORD not in str(denied.value)
    assert "its standard error mentions access denied" in node_dirs.state.with_name("server.log").read_text()


def test_a_pull_without_any_credentials_is_denied(
    engine: Engine, node_dirs: NodeDirs, publish: Publish, tmp_path: Path
) -> None:
    reference = publish("unprovided:1", private=True)
    with (
        serving(engine, node_dirs, kubelet_root_dir=tmp_path / "nothing") as cri,
        pytest.raises(grpc.RpcError, match="requires credentials, but none were given or found"),
    ):
        pull_as_crictl(cri, reference)
