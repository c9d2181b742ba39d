"""Files of credentials, and the output of credential programs."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from hypothesis import strategies as st

from shim.base.spawn import Outcome
from shim.credentials.config_json import read_first
from shim.credentials.matching import fitting
from shim.credentials.program import failure_of
from shim.credentials.provider import Provider
from shim.credentials.provider_config import ProviderSettings, read_providers
from shim.credentials.store import answer_of
from shim.domain.errors import ShimError
from tests.fuzz.target import NESTED, Run, Target, encoded, pure, shape

CONFIG = {
    "auths": {
        "https://index.docker.io/v1/": {"auth": "dTpw"},
        "r.example:5000/team": {"username": "u", "password": "p"},
    },
    "credHelpers": {"*.example": "one"},
    "credsStore": "two",
}
DOCKERCFG = {"r.example": {"auth": "dTpw", "email": "e"}, "other": {"identitytoken": "t"}}
PROVIDERS = {
    "apiVersion": "kubelet.config.k8s.io/v1",
    "kind": "CredentialProviderConfig",
    "providers": [
        {
            "name": "one",
            "matchImages": ["*.dkr.ecr.*.amazonaws.com"],
            "defaultCacheDuration": "1h30m",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "args": ["get"],
            "env": [{"name": "A", "value": "s"}],
        }
    ],
}
RESPONSE = {
    "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
    "kind": "CredentialProviderResponse",
    "cacheKeyType": "Image",
    "cacheDuration": "-1h0m0.5s",
    "auth": {"*.example": {"username": "u", "password": "p"}},
}
SECRET = "s3cret"
REPOSITORIES = ("docker.io/library/busybox", "r.example:5000/team/app", "a.dkr.ecr.b.amazonaws.com/x", "[::1]:5000/a")


@contextmanager
def _files() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        paths = [Path(directory) / name for name in ("config.json", ".dockercfg")]

        def run(data: bytes) -> None:
            for path in paths:
                path.write_bytes(data)
                found = read_first([path])
                for repository in REPOSITORIES if found is not None else ():
                    assert found is not None
                    fitting(found.entries, repository)
                    fitting(found.stores, repository)

        yield run


@contextmanager
def _providers() -> Iterator[Run]:
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / "one"
        program.touch(mode=0o755)
        config = Path(directory) / "providers.yaml"

        def run(data: bytes) -> None:
            config.write_bytes(data)
            for provider in read_providers(config, bin_dir=Path(directory)):
                assert provider.binary.parent == Path(directory)

        yield run


@contextmanager
def _responses() -> Iterator[Run]:
    settings = ProviderSettings(
        name="one",
        binary=Path("/one"),
        match_images=("*.example",),
        api_version="credentialprovider.kubelet.k8s.io/v1",
        default_cache_seconds=60.0,
    )
    provider = Provider(settings)

    def run(data: bytes) -> None:
        for _, credentials in provider._read(data, repository=REPOSITORIES[0]).entries:
            assert credentials.is_given

    yield run


def _program(data: bytes) -> None:
    words = failure_of(Outcome(returncode=1, stdout=data, stderr=data + SECRET.encode()))
    assert len(words) < 2000
    assert SECRET not in words
    answer_of(data, what="ask")


WORDS = (
    b'"auth":"',
    b'"auths":{',
    b'"Username":"<token>"',
    b"dTpw",
    b"https://",
    b"*.*.*",
    b"1h",
    b"-",
    b"&a ",
    b"*a",
    b"!!int ",
    b"? !!int ",
    b"!!bool maybe",
    b"!!timestamp soon",
)
TARGETS = (
    Target(
        name="credentials-files",
        corpus=[json.dumps(CONFIG).encode(), json.dumps(DOCKERCFG).encode()],
        words=WORDS,
        declared=(),
        open=_files,
        strategy=encoded(st.one_of(shape(CONFIG), shape(DOCKERCFG))),
        enormous=(*NESTED, lambda: bytes(100 << 20)),
    ),
    Target(
        name="credentials-providers",
        corpus=[yaml.safe_dump(PROVIDERS).encode(), json.dumps(PROVIDERS).encode()],
        words=(*WORDS, b"\n- ", b"\n  ", b": ", b"!!binary ", b"? ", b"<<: ", b"1:30", b"2026-11-21", b"~"),
        declared=(ShimError,),
        open=_providers,
        strategy=encoded(shape(PROVIDERS)),
        longest=4096,
        seconds=60.0,
        enormous=(lambda: b"[" * 500, lambda: bytes(100 << 20), lambda: b'{"a":' * 100_000),
    ),
    Target(
        name="credentials-response",
        corpus=[json.dumps(RESPONSE).encode()],
        words=WORDS,
        declared=(ShimError,),
        open=_responses,
        strategy=encoded(shape(RESPONSE)),
        enormous=NESTED,
    ),
    Target(
        name="credentials-program",
        corpus=[
            b'{"ServerURL":"r.example","Username":"u","Secret":"p"}',
            b"credentials not found in native keychain\n",
        ],
        words=WORDS,
        declared=(ShimError,),
        open=pure(_program),
        strategy=encoded(shape({"Username": "u", "Secret": "p"})),
        enormous=NESTED,
    ),
)
