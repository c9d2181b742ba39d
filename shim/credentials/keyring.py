"""The node's credentials, asked when a pull brings none: the kubelet's files first, then its credential providers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path

from shim.base.gather import gather
from shim.config.model import Config
from shim.credentials.config_json import CredentialsFile, home_directory, read_first, search_paths
from shim.credentials.matching import fitting
from shim.credentials.model import Credentials, Found
from shim.credentials.provider import Provider
from shim.credentials.provider_config import read_providers
from shim.credentials.store import PREFIX, CredentialStores
from shim.domain.errors import InvalidArgument
from shim.domain.references import Reference

KEPT_SECONDS = 300.0
"""How long a file counts before it is read again: the kubelet's five minutes."""


class Keyring:
    """Finds credentials by image. Thread-safe."""

    def __init__(
        self,
        *,
        paths: Sequence[Path] = (),
        providers: Sequence[Provider] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`paths`: files that may hold credentials, of which the first good one counts; `providers` in their order."""
        self._paths = paths
        self._providers = providers
        self._stores = CredentialStores()
        self._clock = clock
        self._file: CredentialsFile | None = None
        self._expires = 0.0

    def find(self, image: Reference) -> Iterator[Found]:
        """Yield all that may fit `image`, what is to be tried first in front, nothing twice.

        Programs are run no sooner than their credentials are asked for: a store or plugin that is slow delays no
        pull that needs nothing of it.
        """
        seen: set[Credentials] = set()
        for found in chain(self._of_file(image), self._of_providers(image)):
            if found.credentials not in seen:
                seen.add(found.credentials)
                yield found

    def _of_file(self, image: Reference) -> Iterator[Found]:
        file = self._current_file()
        if file is None:
            return
        for _, name in fitting(file.stores, image.name):
            yield from self._of_store(name, image)
        for key, credentials in fitting(file.entries, image.name):
            yield Found(f"{file.path} for {key}", credentials)
        # Docker asks this store alone, the kubelet reads the entries alone: with both, what needs no program is first.
        if file.default_store:
            yield from self._of_store(file.default_store, image)

    def _of_store(self, name: str, image: Reference) -> Iterator[Found]:
        credentials = self._stores.find(name, domain=image.domain)
        if credentials is not None:
            yield Found(f"{PREFIX}{name} for {image.domain}", credentials)

    def _of_providers(self, image: Reference) -> Iterator[Found]:
        """Yield what the providers have, merged: of two with the same key, the earlier one's is tried first."""
        answers = gather([partial(provider.find, image.name) for provider in self._providers])
        merged = [
            (key, Found(f"credential provider {provider.name} for {key}", credentials))
            for provider, entries in zip(self._providers, answers, strict=True)
            for key, credentials in entries
        ]
        for _, found in fitting(merged, image.name):
            yield found

    def _current_file(self) -> CredentialsFile | None:
        # Two threads may both read it: they read the same. That there is none is found out each time, so that the
        # first login counts at once.
        now = self._clock()
        if self._file is None or now >= self._expires:
            self._file = read_first(self._paths)
            self._expires = now + KEPT_SECONDS
        return self._file


def keyring_of_node(config: Config, *, environ: Mapping[str, str]) -> Keyring:
    """Make the keyring the settings describe; InvalidArgument and FailedPrecondition as `read_providers`."""
    paths = search_paths(kubelet_root=config.kubelet_root_dir, working=Path.cwd(), home=home_directory(environ))
    return Keyring(paths=paths, providers=_providers(config))


def _providers(config: Config) -> list[Provider]:
    file, directory = config.image_credential_provider_config, config.image_credential_provider_bin_dir
    if bool(file) != bool(directory):
        raise InvalidArgument(
            "image_credential_provider_config and image_credential_provider_bin_dir are given both or not at all"
        )
    return [Provider(settings) for settings in read_providers(Path(file), bin_dir=Path(directory))] if file else []
