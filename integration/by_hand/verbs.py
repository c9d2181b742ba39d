"""Docker commands of people and tools on a node: each function runs a command, and checks its effect on the pod.

They are the rows of docs/by-hand.md, by section and command.
"""

import signal
from collections.abc import Callable

import grpc

from integration.by_hand.hands import Hands, stranger, unused_image
from integration.node import images
from integration.pods.kubelet import has_image, refusal, unused_name, wait_image, wait_no_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb

CONTAINER = "A container"
PAUSE = "The pause container"
ENGINE = "Images, networks, volumes, the daemon"

Verb = Callable[[Hands], None]
VERBS: dict[tuple[str, str], Verb] = {}
"""By section and command."""

_LIMIT = 64 << 20


def verb(section: str, command: str) -> Callable[[Verb], Verb]:
    """Register a function for a command; afterwards the pod is stopped and removed, and nothing may be left."""

    def enter(function: Verb) -> Verb:
        VERBS[section, command] = function
        return function

    return enter


def _wait_started_again(hands: Hands, started_at: int) -> None:
    wait_until(lambda: (now := hands.status()).state == pb.CONTAINER_RUNNING and now.started_at > started_at)


# --- a container ------------------------------------------------------------------------------------------


@verb(CONTAINER, "docker rename")
def _rename(hands: Hands) -> None:
    hands.docker("rename", hands.app, unused_name("mine"))
    hands.restart_server()
    hands.assert_untouched()
    assert hands.status().metadata.name == "app"


@verb(CONTAINER, "docker update --memory")
def _update(hands: Hands) -> None:
    hands.docker("update", "--memory", str(_LIMIT), "--memory-swap", str(_LIMIT), hands.app)
    wait_until(lambda: hands.status().resources.linux.memory_limit_in_bytes == _LIMIT)
    hands.assert_untouched()
    resources = pb.LinuxContainerResources(memory_limit_in_bytes=2 * _LIMIT, memory_swap_limit_in_bytes=2 * _LIMIT)
    request = pb.UpdateContainerResourcesRequest(container_id=hands.app, linux=resources)
    hands.served.cri.runtime.UpdateContainerResources(request)
    assert hands.status().resources.linux.memory_limit_in_bytes == 2 * _LIMIT


@verb(CONTAINER, "docker update --restart")
def _update_restart(hands: Hands) -> None:
    first = hands.status().started_at
    hands.docker("update", "--restart", "always", hands.app)
    hands.wait_lines()
    hands.docker("exec", "--detach", hands.app, "kill", "-TERM", "1")
    _wait_started_again(hands, first)
    hands.wait_lines()
    hands.served.cri.stop_container(hands.app, timeout=10)
    assert hands.status().state == pb.CONTAINER_EXITED
    assert hands.docker("inspect", "--format", "{{.State.Running}}", hands.app) == "false"


@verb(CONTAINER, "docker pause")
def _pause(hands: Hands) -> None:
    hands.docker("pause", hands.app)
    assert hands.status().state == pb.CONTAINER_RUNNING
    code, message = refusal(lambda: hands.served.cri.exec(hands.app, "true"))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "paused" in message
    hands.served.cri.stop_container(hands.app, timeout=10)
    ended = hands.status()
    assert (ended.state, ended.exit_code) == (pb.CONTAINER_EXITED, 7)  # the signal has woken it, and its trap has run


@verb(CONTAINER, "docker unpause")
def _unpause(hands: Hands) -> None:
    hands.docker("pause", hands.app)
    hands.docker("unpause", hands.app)
    hands.assert_untouched()
    hands.wait_lines()


@verb(CONTAINER, "docker stop")
def _stop(hands: Hands) -> None:
    hands.wait_lines()
    hands.docker("stop", hands.app)
    ended = hands.wait_state(pb.CONTAINER_EXITED)
    assert (ended.exit_code, ended.reason) == (7, "Error")
    assert hands.next_container() in hands.listed()


@verb(CONTAINER, "docker kill")
def _kill(hands: Hands) -> None:
    hands.docker("kill", hands.app)
    ended = hands.wait_state(pb.CONTAINER_EXITED)
    assert (ended.exit_code, ended.reason) == (137, "Error")
    assert hands.next_container() in hands.listed()


@verb(CONTAINER, "docker restart")
def _restart(hands: Hands) -> None:
    first, counted = hands.status().started_at, hands.wait_lines()
    hands.docker("restart", "--time", "10", hands.app)
    _wait_started_again(hands, first)
    hands.assert_untouched()
    lines = hands.wait_lines()
    again = lines.index(0, 1)
    assert again >= len(counted)
    assert lines == [*range(again), *range(len(lines) - again)]


@verb(CONTAINER, "docker start")
def _start(hands: Hands) -> None:
    hands.served.cri.stop_container(hands.app, timeout=10)
    hands.docker("start", hands.app)
    hands.wait_state(pb.CONTAINER_RUNNING)
    hands.wait_lines()
    hands.assert_untouched()


@verb(CONTAINER, "docker rm")
def _rm(hands: Hands) -> None:
    hands.served.cri.stop_container(hands.app)
    hands.docker("rm", hands.app)
    hands.wait_gone()


@verb(CONTAINER, "docker rm --force")
def _rm_force(hands: Hands) -> None:
    hands.docker("rm", "--force", hands.app)
    hands.wait_gone()
    assert [hands.next_container()] == hands.listed()


@verb(CONTAINER, "docker cp")
def _cp(hands: Hands) -> None:
    file = hands.directory / "by-hand"
    file.write_text("by hand\n")
    hands.docker("cp", str(file), f"{hands.app}:/by-hand")
    assert hands.kubelet.inside(hands.app, "cat /by-hand") == "by hand\n"
    hands.docker("cp", f"{hands.app}:/by-hand", f"{file}-back")
    assert file.with_name("by-hand-back").read_text() == "by hand\n"
    hands.assert_untouched()


@verb(CONTAINER, "docker commit")
def _commit(hands: Hands) -> None:
    image = unused_image("committed")
    hands.docker("commit", hands.app, image)
    wait_image(hands.served.cri, image)
    other = hands.docker("run", "--detach", image)
    try:
        hands.wait_lines()
        hands.assert_untouched()
    finally:
        hands.docker("rm", "--force", other)
    # To the CRI it is an image like any other.
    ours = hands.kubelet.started(hands.pod, image=image, metadata=pb.ContainerMetadata(name="committed"))
    assert hands.kubelet.inside(ours, "echo here") == "here\n"
    hands.served.cri.remove_container(ours)
    hands.docker("rmi", image)


@verb(CONTAINER, "docker exec")
def _exec(hands: Hands) -> None:
    hands.docker("exec", "--detach", hands.app, "sleep", "4321")
    wait_until(lambda: "sleep 4321" in hands.kubelet.inside(hands.app, "ps"))
    hands.restart_server()
    assert "sleep 4321" in hands.kubelet.inside(hands.app, "ps")
    hands.assert_untouched()


@verb(CONTAINER, "docker network connect")
def _connect(hands: Hands) -> None:
    network = hands.docker("network", "create", unused_name("net"))
    try:
        hands.docker.refuses("network", "connect", network, hands.app)
        hands.assert_untouched()
    finally:
        hands.docker("network", "rm", network)


@verb(CONTAINER, "docker network disconnect")
def _disconnect(hands: Hands) -> None:
    hands.docker.refuses("network", "disconnect", "bridge", hands.app)
    hands.docker.refuses("network", "disconnect", "--force", "none", hands.app)
    hands.assert_untouched()


@verb(CONTAINER, "docker run --network container:")
def _run_in_network(hands: Hands) -> None:
    """Inspect a pod's network with a tool in another container, as people do."""
    other = stranger(hands, hands.kubelet.image, "--network", f"container:{hands.pod.id}")
    try:
        wait_until(lambda: "eth0" in hands.docker("exec", other, "ip", "address"))
        hands.restart_server()
        hands.assert_untouched()
        hands.served.cri.stop(hands.pod.id)
        hands.served.cri.remove(hands.pod.id)
        assert hands.docker("inspect", "--format", "{{.State.Running}}", other) == "true"
        assert "eth0" not in hands.docker("exec", other, "ip", "address")
    finally:
        hands.docker("rm", "--force", other)


@verb(CONTAINER, "docker container prune")
def _container_prune(hands: Hands) -> None:
    hands.docker("container", "prune", "--force")
    hands.assert_untouched()
    hands.served.cri.stop_container(hands.app)
    hands.docker("container", "prune", "--force")
    hands.wait_gone()
    assert hands.served.cri.sandbox_status(hands.pod.id).state == pb.SANDBOX_READY
    assert [hands.next_container()] == hands.listed()


# --- the pause container ----------------------------------------------------------------------------------


@verb(PAUSE, "docker rename")
def _rename_pause(hands: Hands) -> None:
    hands.docker("rename", hands.pod.id, unused_name("mine"))
    hands.restart_server()
    hands.assert_untouched()
    assert hands.served.cri.run(hands.pod.config) == hands.pod.id


@verb(PAUSE, "docker update")
def _update_pause(hands: Hands) -> None:
    hands.docker("update", "--restart", "always", "--cpu-shares", "512", hands.pod.id)
    hands.restart_server()
    hands.assert_untouched()


@verb(PAUSE, "docker pause")
def _pause_pause(hands: Hands) -> None:
    hands.docker("pause", hands.pod.id)
    hands.assert_untouched()


@verb(PAUSE, "docker unpause")
def _unpause_pause(hands: Hands) -> None:
    hands.docker("pause", hands.pod.id)
    hands.docker("unpause", hands.pod.id)
    hands.assert_untouched()


def _ends_pod(*command: str) -> Verb:
    def end(hands: Hands) -> None:
        hands.docker(*command, hands.pod.id)
        hands.wait_ready(ready=False)
        assert refusal(hands.next_container)[0] in {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND}
        hands.served.cri.stop(hands.pod.id)
        assert hands.served.snapshot().leases == hands.before.leases

    return end


verb(PAUSE, "docker stop")(_ends_pod("stop"))
verb(PAUSE, "docker kill")(_ends_pod("kill"))
verb(PAUSE, "docker restart")(_ends_pod("restart"))


@verb(PAUSE, "docker start")
def _start_pause(hands: Hands) -> None:
    hands.docker("kill", hands.pod.id)
    hands.wait_ready(ready=False)
    hands.docker("start", hands.pod.id)
    wait_until(lambda: hands.docker("inspect", "--format", "{{.State.Running}}", hands.pod.id) == "true")
    hands.restart_server()
    hands.wait_ready(ready=False)


@verb(PAUSE, "docker rm --force")
def _rm_pause(hands: Hands) -> None:
    _ends_pod("rm", "--force")(hands)
    [listed] = hands.served.cri.sandboxes(id=hands.pod.id)
    assert listed.metadata == hands.pod.config.metadata


@verb(PAUSE, "docker exec")
def _exec_pause(hands: Hands) -> None:
    hands.docker.refuses("exec", hands.pod.id, "/nothing")
    hands.assert_untouched()


@verb(PAUSE, "docker network connect")
def _connect_pause(hands: Hands) -> None:
    network = hands.docker("network", "create", unused_name("net"))
    try:
        hands.docker.refuses("network", "connect", network, hands.pod.id)
        hands.assert_untouched()
    finally:
        hands.docker("network", "rm", network)


@verb(PAUSE, "docker network disconnect")
def _disconnect_pause(hands: Hands) -> None:
    address = hands.served.cri.sandbox_status(hands.pod.id).network.ip
    hands.docker("network", "disconnect", "none", hands.pod.id)
    hands.restart_server()
    hands.assert_untouched()
    assert address in hands.kubelet.inside(hands.app, "ip address show eth0")


@verb(PAUSE, "docker container prune")
def _prune_pause(hands: Hands) -> None:
    hands.docker("kill", hands.pod.id)
    hands.wait_ready(ready=False)
    hands.docker("container", "prune", "--force")
    wait_until(lambda: hands.pod.id not in hands.served.snapshot().containers)
    assert [listed.state for listed in hands.served.cri.sandboxes(id=hands.pod.id)] == [pb.SANDBOX_NOTREADY]


# --- images, networks, volumes, the daemon ----------------------------------------------------------------


def _built(hands: Hands, *, layers: int = 1) -> str:
    """Build an image on the pod's image, and wait until the server knows it."""
    image = unused_image("built")
    (hands.directory / "Dockerfile").write_text(
        f"FROM {hands.kubelet.image}\n" + "".join(f"LABEL n{n}={image}\n" for n in range(layers))
    )
    hands.docker("build", "--quiet", "--tag", image, str(hands.directory))
    wait_image(hands.served.cri, image)
    return image


@verb(ENGINE, "docker build")
def _build(hands: Hands) -> None:
    image = _built(hands)
    other = hands.kubelet.started(hands.pod, image=image, metadata=pb.ContainerMetadata(name="built"))
    hands.served.cri.remove_container(other)
    hands.docker("rmi", image)
    wait_no_image(hands.served.cri, image)
    hands.assert_untouched()


@verb(ENGINE, "docker load")
def _load(hands: Hands) -> None:
    image, file = _built(hands), hands.directory / "image.tar"
    hands.docker("save", "--output", str(file), image)
    hands.docker("rmi", image)
    wait_no_image(hands.served.cri, image)
    hands.docker("load", "--input", str(file))
    wait_image(hands.served.cri, image)
    hands.docker("rmi", image)
    hands.assert_untouched()


@verb(ENGINE, "docker tag")
def _tag(hands: Hands) -> None:
    image = unused_image("tagged")
    hands.docker("tag", hands.kubelet.image, image)
    wait_image(hands.served.cri, image)
    hands.docker("rmi", image)
    wait_no_image(hands.served.cri, image)
    hands.assert_untouched()


@verb(ENGINE, "docker rmi --force")
def _rmi(hands: Hands) -> None:
    """Untag the image of a running container: it keeps running, and a kubelet pulls again for the next container."""
    image = _built(hands)
    user = hands.kubelet.started(hands.pod, image=image, metadata=pb.ContainerMetadata(name="user"))
    record = hands.served.cri.container_status(user)
    hands.docker.refuses("rmi", "--force", record.image_id)
    hands.docker("rmi", "--force", image)
    wait_no_image(hands.served.cri, image)
    assert hands.kubelet.inside(user, "echo here") == "here\n"
    hands.restart_server()
    now = hands.served.cri.container_status(user)
    assert (now.state, now.image, now.image_id) == (pb.CONTAINER_RUNNING, record.image, record.image_id)
    hands.served.cri.remove_container(user)
    hands.docker("image", "prune", "--force")


@verb(ENGINE, "docker image prune --all")
def _image_prune(hands: Hands) -> None:
    used, unused = _built(hands), _built(hands, layers=2)
    user = hands.kubelet.created(hands.pod, image=used, metadata=pb.ContainerMetadata(name="user"))
    hands.docker("image", "prune", "--all", "--force")
    wait_no_image(hands.served.cri, unused)
    assert has_image(hands.served.cri, used)
    assert has_image(hands.served.cri, images.PAUSE)
    hands.served.cri.start(user)
    hands.served.cri.remove_container(user)
    hands.docker("rmi", used)
    hands.assert_untouched()


@verb(ENGINE, "docker volume prune")
def _volume_prune(hands: Hands) -> None:
    """Keep the volume of an image with its container, also after the container has exited."""
    image = unused_image("volume")
    (hands.directory / "Dockerfile").write_text(f"FROM {hands.kubelet.image}\nVOLUME /kept\n")
    hands.docker("build", "--quiet", "--tag", image, str(hands.directory))
    wait_image(hands.served.cri, image)
    metadata = pb.ContainerMetadata(name="volume")
    user = hands.kubelet.started(
        hands.pod, "sh", "-c", "echo kept >/kept/file; sleep 3600", image=image, metadata=metadata
    )
    wait_until(lambda: hands.kubelet.inside(user, "cat /kept/file") == "kept\n")
    hands.served.cri.stop_container(user)
    volumes = hands.docker("volume", "ls", "--quiet")
    hands.docker("volume", "prune", "--force")
    assert hands.docker("volume", "ls", "--quiet") == volumes
    hands.served.cri.remove_container(user)
    assert hands.docker("volume", "ls", "--quiet") == ""  # removed with its container
    hands.docker("rmi", image)
    hands.assert_untouched()


@verb(ENGINE, "docker network prune")
def _network_prune(hands: Hands) -> None:
    network = hands.docker("network", "create", unused_name("net"))
    hands.docker("network", "prune", "--force")
    hands.docker.refuses("network", "inspect", network)
    hands.assert_untouched()


@verb(ENGINE, "docker builder prune")
def _builder_prune(hands: Hands) -> None:
    hands.docker("builder", "prune", "--all", "--force")
    hands.assert_untouched()
    assert has_image(hands.served.cri, hands.kubelet.image)


@verb(ENGINE, "docker system prune --all --volumes")
def _system_prune(hands: Hands) -> None:
    unused, ended = _built(hands), hands.kubelet.started(hands.pod, metadata=pb.ContainerMetadata(name="ended"))
    network = hands.docker("network", "create", unused_name("net"))
    hands.served.cri.stop_container(ended)
    dead = hands.kubelet.pod()
    hands.docker("kill", dead.id)
    wait_until(lambda: hands.served.cri.sandbox_status(dead.id).state == pb.SANDBOX_NOTREADY)

    hands.docker("system", "prune", "--all", "--volumes", "--force")

    wait_no_image(hands.served.cri, unused)
    wait_until(lambda: hands.listed() == [hands.app])
    hands.docker.refuses("network", "inspect", network)
    hands.assert_untouched()
    # Its address is released by the kubelet's StopPodSandbox, as always.
    assert hands.served.cri.sandbox_status(dead.id).state == pb.SANDBOX_NOTREADY
    hands.served.cri.stop(dead.id)
    hands.served.cri.remove(dead.id)
    assert hands.next_container() in hands.listed()


@verb(ENGINE, "docker compose up, docker compose down")
def _compose(hands: Hands) -> None:
    """Create the objects of a compose project: a network and containers on it, with compose's labels."""
    project = unused_name("shop")
    labels = ("--label", f"com.docker.compose.project={project}")
    network = hands.docker("network", "create", *labels, f"{project}_default")
    made = [
        hands.docker(
            *("run", "--detach", "--name", f"{project}-{service}-1", "--network", network, "--network-alias", service),
            *(*labels, "--label", f"com.docker.compose.service={service}", "--restart", "always"),
            *(hands.kubelet.image, "sleep", "3600"),
        )
        for service in ("web", "db")
    ]
    try:
        hands.assert_untouched()
        assert not {*made} & {container.id for container in hands.served.cri.containers()}
        hands.restart_server()
        hands.assert_untouched()
    finally:
        hands.docker("rm", "--force", *made)
        hands.docker("network", "rm", network)
    hands.assert_untouched()


@verb(ENGINE, "systemctl reload docker")
def _reload(hands: Hands) -> None:
    hands.served.engine.daemon.signal(signal.SIGHUP)
    wait_until(lambda: "Reloaded configuration" in hands.served.engine.daemon.log.read_text())
    hands.assert_untouched()


@verb(ENGINE, "systemctl restart docker")
def _restart_daemon(hands: Hands) -> None:
    """Without live-restore all containers exit; a kubelet creates the pod again."""
    hands.served.engine.restart()
    hands.served.wait_answers()
    hands.wait_ready(ready=False)
    hands.wait_state(pb.CONTAINER_EXITED)
    again = pb.PodSandboxConfig()
    again.CopyFrom(hands.pod.config)
    again.metadata.attempt = 1
    sandbox = hands.served.cri.run(again)
    assert hands.served.cri.sandbox_status(sandbox).state == pb.SANDBOX_READY
    hands.served.cri.stop(sandbox)
    hands.served.cri.remove(sandbox)
