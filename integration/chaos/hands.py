"""Docker by hand: a random walk over Docker's commands, on containers of pods and on other objects."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from random import Random
from secrets import token_hex
from typing import Any

import docker
import requests

from integration.chaos.target import Target
from integration.node.images import BUSYBOX

_REFUSED = (docker.errors.DockerException, requests.RequestException)
"""Errors that a person meets when a container has just gone or Docker is down."""
_BETWEEN_SECONDS = (0.05, 1.0)
_INSIST_SECONDS = 120.0
"""How long the removal of a walk's objects is retried: Docker may stay down until other faults have ended."""
_AGAIN_SECONDS = 0.5


class _Walk:
    """A person at a terminal, who cleans up at the end."""

    def __init__(self, target: Target, random: Random) -> None:
        self._target = target
        self._api = target.engine.api
        self._random = random
        self._strangers: list[str] = []
        self._networks: list[str] = []
        self._images: list[str] = []

    def go(self, seconds: float, steps: Sequence[Callable[["_Walk"], None]]) -> None:
        """Run random steps for `seconds`, then clean up."""
        until = time.monotonic() + seconds
        try:
            while time.monotonic() < until:
                with suppress(*_REFUSED):
                    self._random.choice(steps)(self)
                time.sleep(self._random.uniform(*_BETWEEN_SECONDS))
        finally:
            self._clean_up()

    # Containers of pods, pause containers included

    def rename(self) -> None:
        chosen = self._some_container()
        name = str(chosen["Names"][0])[1:]
        # Sometimes the new name is the name of the pod's next attempt.
        stem, _, attempt = name.rpartition("_")
        taken = f"{stem}_{int(attempt) + 1}" if attempt.isdigit() and self._random.random() < 0.5 else ""
        self._api.rename(chosen["Id"], taken or f"mine-{token_hex(6)}")

    def update(self) -> None:
        self._api.update_container(self._some_container()["Id"], cpu_shares=self._random.choice((2, 256, 1024)))

    def pause(self) -> None:
        chosen = self._some_container()["Id"]
        self._api.pause(chosen)
        time.sleep(self._random.uniform(0, 2))
        self._api.unpause(chosen)

    def stop(self) -> None:
        self._api.stop(self._some_container()["Id"], timeout=self._random.choice((0, 3)))

    def kill(self) -> None:
        self._api.kill(self._some_container()["Id"], signal=self._random.choice(("SIGKILL", "SIGTERM")))

    def restart(self) -> None:
        with self._restarting() as chosen:
            self._api.restart(chosen, timeout=0)

    def start(self) -> None:
        with self._restarting() as chosen:
            self._api.start(chosen)

    def remove(self) -> None:
        chosen = self._some_container()["Id"]
        self._target.removed_by_hand.add(chosen)
        self._api.remove_container(chosen, force=True, v=True)

    def exec(self) -> None:
        made = self._api.exec_create(self._some_container()["Id"], ["sleep", "1"])["Id"]
        self._api.exec_start(made, detach=True)

    def copy(self) -> None:
        with suppress(KeyError):
            pieces, _ = self._api.get_archive(self._some_container()["Id"], "/etc")
            for _ in pieces:
                pass

    def connect(self) -> None:
        chosen = self._some_container()["Id"]
        self._api.disconnect_container_from_network(chosen, "none")
        self._api.connect_container_to_network(chosen, "bridge")

    # Other objects of the engine

    def commit(self) -> None:
        """Run a container that has the labels of a pod's container, and sometimes its name."""
        chosen = self._some_container()
        image = f"test.example/committed:{token_hex(6)}"
        self._images.append(image)
        repository, _, tag = image.partition(":")
        self._api.commit(chosen["Id"], repository, tag)
        name = str(chosen["Names"][0])[1:] + self._random.choice(("", "1"))
        self._run(image, name if self._random.random() < 0.5 else f"mine-{token_hex(6)}", network="none")

    def compose(self) -> None:
        project = f"shop-{token_hex(4)}"
        labels = {"com.docker.compose.project": project}
        name = f"{project}_default"
        self._networks.append(name)
        self._api.create_network(name, labels=labels)
        for service in ("web", "db"):
            self._run(BUSYBOX, f"{project}-{service}-1", network=name, labels=labels)

    def tag(self) -> None:
        tag = token_hex(6)
        self._images.append(f"test.example/tagged:{tag}")
        self._api.tag(BUSYBOX, "test.example/tagged", tag)
        self._api.remove_image(self._images[-1], force=True)

    def prune(self) -> None:
        """Do what `docker system prune --volumes` does.

        Keep all tagged images, which these pods could not pull again.
        """
        # Noted before the prune: the reply names the removed containers, but may be lost.
        ended = self._api.containers(all=True, filters={"status": ["created", "exited", "dead"]})
        self._target.removed_by_hand |= {str(row["Id"]) for row in ended}
        gone = self._api.prune_containers()  # type: ignore[no-untyped-call] # a gap in the stubs, as below
        self._target.removed_by_hand |= set(gone["ContainersDeleted"] or ())
        self._api.prune_networks()  # type: ignore[no-untyped-call]
        self._api.prune_volumes()
        self._api.prune_images()  # type: ignore[no-untyped-call]
        self._api.prune_builds()

    # Helpers

    def _some_container(self) -> dict[str, Any]:
        """Return a random container of a pod; raise the error of a missing container when there is none."""
        rows = [row for row in self._api.containers(all=True) if row["Id"] not in self._strangers]
        if not rows:
            raise docker.errors.DockerException("no container exists")
        return dict[str, Any](self._random.choice(sorted(rows, key=lambda row: str(row["Id"]))))

    @contextmanager
    def _restarting(self) -> Iterator[str]:
        chosen = str(self._some_container()["Id"])
        self._target.restarted_by_hand.add(chosen)
        yield chosen

    def _run(self, image: str, name: str, *, network: str, labels: dict[str, str] | None = None) -> None:
        host = self._api.create_host_config(network_mode=network, init=False)
        made = self._api.create_container(image, ["sleep", "3600"], name=name, host_config=host, labels=labels)["Id"]
        self._strangers.append(made)
        self._api.start(made)

    def _clean_up(self) -> None:
        """Remove the objects of this walk and unpause all containers.

        Fail if a container of the walk was already gone.
        """
        api, here = self._api, self._target.removed_by_hand
        removed = {each: _insist(partial(api.remove_container, each, force=True, v=True)) for each in self._strangers}
        for image in self._images:
            _insist(partial(api.remove_image, image, force=True))
        for network in self._networks:
            _insist(partial(api.remove_network, network))
        _insist(self._unpause_all)
        lost = [each[:12] for each, was_there in removed.items() if not was_there and each not in here]
        assert not lost, f"containers of users were removed: {lost}"

    def _unpause_all(self) -> None:
        for row in self._api.containers(filters={"status": "paused"}):
            with suppress(docker.errors.NotFound):
                self._api.unpause(row["Id"])


def _insist(change: Callable[[], object]) -> bool:
    """Repeat a change until Docker makes it; return whether the object existed."""
    until = time.monotonic() + _INSIST_SECONDS
    while True:
        try:
            change()
        except docker.errors.NotFound:
            return False
        except _REFUSED:
            if time.monotonic() > until:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return True


_ON_CONTAINERS = (
    _Walk.rename,
    _Walk.update,
    _Walk.pause,
    _Walk.stop,
    _Walk.kill,
    _Walk.restart,
    _Walk.start,
    _Walk.remove,
    _Walk.exec,
    _Walk.copy,
    _Walk.connect,
)
_ON_ENGINE = (_Walk.rename, _Walk.commit, _Walk.compose, _Walk.tag, _Walk.prune)


def on_containers(target: Target, seconds: float, random: Random) -> None:
    """Change containers of pods by hand, in all ways that Docker offers."""
    _Walk(target, random).go(seconds, _ON_CONTAINERS)


def on_engine(target: Target, seconds: float, random: Random) -> None:
    """Create and remove containers, networks and images of users, and prune."""
    _Walk(target, random).go(seconds, _ON_ENGINE)
