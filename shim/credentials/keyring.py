"""The node's credentials for pulls without any: the kubelet's files first, then its credential providers."""

import math
import os
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
from shim.hostfs.client import HostCall, call_here

KEPT_SECONDS = 300.0
"""How long a file, or its absence, is cached, in seconds: the kubelet's five minutes."""


class Keyring:
    """Finds credentials by image. Thread-safe."""

    def __init__(
        self,
        *,
        paths: Sequence[Path] = (),
        providers: Sequence[Provider] = (),
        clock: Callable[[], float] = time.monotonic,
        call: HostCall = call_here,
    ) -> None:
        """Read nothing yet. The first valid file of `paths` counts; `providers` are tried in order.

        Files are read through `call`, because reads may hang.
        """
        self._paths = paths
        self._call = call
        self._providers = providers
        self._stores = CredentialStores()
        self._clock = clock
        self._file: CredentialsFile | None = None
        self._expires = -math.inf
        self._came_at = -math.inf
        """When the file first existed."""

    def find(self, image: Reference) -> Iterator[Found]:
        """Yield all credentials that may match `image`, in the order to try them, without duplicates.

        Programs run only when the iterator reaches them, so a slow helper or plugin does not delay pulls that do not
        need it.
        """
        seen: set[Credentials] = set()
        for found in chain(self._find_in_file(image), self._find_in_providers(image)):
            if found.credentials not in seen:
                seen.add(found.credentials)
                yield found

    def find_late(self, image: Reference, *, since: float) -> Iterator[Found]:
        """Yield credentials of a file that appeared after `since` (a time of `now`), perhaps during another pull.

        Used after the registry has refused a pull, so that a first login takes effect at once.
        """
        if self._file is None:
            self._expires = -math.inf
            self._current_file()
        if self._came_at >= since:
            yield from self._find_in_file(image)

    def now(self) -> float:
        """Return the current time, for `find_late`."""
        return self._clock()

    def _find_in_file(self, image: Reference) -> Iterator[Found]:
        file = self._current_file()
        if file is None:
            return
        for _, name in fitting(file.stores, image.name):
            yield from self._find_in_store(name, image)
        for key, credentials in fitting(file.entries, image.name):
            yield Found(f"{file.path} for {key}", credentials)
        # Docker uses only this helper, the kubelet only the entries. Credentials that need no program come first.
        if file.default_store:
            yield from self._find_in_store(file.default_store, image)

    def _find_in_store(self, name: str, image: Reference) -> Iterator[Found]:
        credentials = self._stores.find(name, domain=image.domain)
        if credentials is not None:
            yield Found(f"{PREFIX}{name} for {image.domain}", credentials)

    def _find_in_providers(self, image: Reference) -> Iterator[Found]:
        """Yield the merged entries of the providers; for equal keys in the order of the providers."""
        answers = gather([partial(provider.find, image.name) for provider in self._providers])
        merged = [
            (key, Found(f"credential provider {provider.name} for {key}", credentials))
            for provider, entries in zip(self._providers, answers, strict=True)
            for key, credentials in entries
        ]
        for _, found in fitting(merged, image.name):
            yield found

    def _current_file(self) -> CredentialsFile | None:
        # Two threads may read it concurrently, with the same result.
        now = self._clock()
        if now >= self._expires:
            before = self._file
            self._file = read_first(self._paths, call=self._call)
            self._expires = now + KEPT_SECONDS
            if before is None and self._file is not None:
                self._came_at = now
        return self._file


def keyring_of_node(config: Config, *, environ: Mapping[str, str], call: HostCall = call_here) -> Keyring:
    """Create the keyring of the settings, which reads files through `call`.

    Raise InvalidArgument and FailedPrecondition like `read_providers`, DeadlineExceeded if a path of theirs hangs.
    """
    paths = search_paths(kubelet_root=config.kubelet_root_dir, working=Path.cwd(), home=home_directory(environ))
    return Keyring(paths=paths, providers=_providers(config, call), call=call)


def _providers(config: Config, call: HostCall) -> list[Provider]:
    file, directory = config.image_credential_provider_config, config.image_credential_provider_bin_dir
    if bool(file) != bool(directory):
        raise InvalidArgument(
            "image_credential_provider_config and image_credential_provider_bin_dir must be set together"
        )
    if not file:
        return []
    for path in (file, directory):  # called in the helper process, so that a hang does not block the start
        call(os.path.exists, path, path=path, what="read credential providers")
    return [Provider(settings) for settings in read_providers(Path(file), bin_dir=Path(directory))]
