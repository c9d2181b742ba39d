"""Users of containers: of the first process, of execs, and in the status."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from integration.conftest import Served
from integration.node.images import File, busybox_image, load
from integration.node.isolation import Node
from integration.pods.kubelet import Kubelet, Pod, failure, pid_of, secured, wait_image, wait_no_image
from integration.waiting import wait_until
from shim.api.v1 import api_pb2 as pb
from shim.domain.names import INSPECTION_PREFIX

Code = grpc.StatusCode

PASSWD = b"""\
root:x:0:0:root:/root:/bin/sh

# people
app:x:1000:1000:app:/srv/app:/bin/sh
ops:x:2000:3000::/srv/ops:/bin/sh
torn:x:none:1:/:/bin/sh
1234:x:0:0:digits:/:/bin/sh
ops:x:0:0:a second one:/:/bin/sh
"""
GROUP = b"""\
root:x:0:
wheel:x:10:root
app:x:1000:
audio:x:29:app
video:x:44:app,ops
members:x:50000:app
torn:x:none:app
5678:x:0:
6789:x:none:
"""
FILES = (File("etc/passwd", PASSWD), File("etc/group", GROUP))


@contextmanager
def made_image(
    served: Served, node: Node, name: str, *, files: tuple[File, ...], user: str, volume: str = ""
) -> Iterator[str]:
    """Build an image that exists while the block runs."""
    reference = f"users.test/{name}:1"
    config: dict[str, object] = {"User": user, **({"Volumes": {volume: {}}} if volume else {})}
    plain = busybox_image(node.busybox, reference=reference, config=config)
    kept = [file for file in plain.files if file.path not in ("etc/passwd", "etc/group")]
    load(served.engine.api, replace(plain, files=(*kept, *files)))
    wait_image(served.cri, reference)
    yield reference
    served.engine.api.remove_image(reference, force=True)
    wait_no_image(served.cri, reference)


USERS = {"plain": "", "app": "app", "number": "1000", "grouped": "ops:video", "numbers": "2000:44", "stranger": "77"}
"""`USER` of each image, by its name."""


@pytest.fixture(scope="module")
def people(served: Served, node: Node) -> Iterator[Mapping[str, str]]:
    """The images of USERS, with the users and groups of FILES."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(made_image(served, node, name, files=FILES, user=user))
            for name, user in USERS.items()
        }


@dataclass(frozen=True)
class Seen:
    """Numbers of a process, as the kernel reports them."""

    uid: int
    gid: int
    groups: list[int]


def seen(status: str) -> Seen:
    """Read /proc/PID/status; all four ids of a kind are the same."""
    fields = {line.split(":")[0]: line.split()[1:] for line in status.splitlines()}
    [uid], [gid] = set(fields["Uid"]), set(fields["Gid"])
    return Seen(int(uid), int(gid), [int(group) for group in fields["Groups"]])


def ids(**numbers: int) -> dict[str, pb.Int64Value]:
    return {name: pb.Int64Value(value=number) for name, number in numbers.items()}


def expect_identity(kubelet: Kubelet, served: Served, container: str, expected: Seen) -> None:
    """Check the user of the first process, of an exec, and in the status."""
    first = Path(f"/proc/{pid_of(served, container)}/status").read_text()
    later = kubelet.inside(container, "cat /proc/self/status")
    reported = kubelet.cri.container_status(container).user.linux

    assert seen(first) == expected
    assert seen(later) == expected
    assert Seen(reported.uid, reported.gid, list(reported.supplemental_groups)) == expected


APP_GROUPS = [29, 44, 1000, 50000]
CASES: dict[str, tuple[str, dict[str, Any], Seen, str]] = {
    "image of root": ("plain", {}, Seen(0, 0, [0, 10]), "/root"),
    "image of a name": ("app", {}, Seen(1000, 1000, APP_GROUPS), "/srv/app"),
    "image of a uid": ("number", {}, Seen(1000, 1000, APP_GROUPS), "/srv/app"),
    "image of a name and a group": ("grouped", {}, Seen(2000, 44, [44]), "/srv/ops"),
    "image of a uid and a gid": ("numbers", {}, Seen(2000, 44, [44]), "/srv/ops"),
    "image of an unknown uid": ("stranger", {}, Seen(77, 0, [0]), "/"),
    "uid": ("plain", ids(run_as_user=2000), Seen(2000, 3000, [44, 3000]), "/srv/ops"),
    "unknown uid": ("plain", ids(run_as_user=4321), Seen(4321, 0, [0]), "/"),
    "uid of digits that are a name": ("plain", ids(run_as_user=1234), Seen(1234, 0, [0]), "/"),
    "root in an image of another": ("app", ids(run_as_user=0), Seen(0, 0, [0, 10]), "/root"),
    "largest uid and gid": (
        "plain",
        ids(run_as_user=2**31 - 1, run_as_group=2**31 - 1),
        Seen(2**31 - 1, 2**31 - 1, [2**31 - 1]),
        "/",
    ),
    "uid and gid": ("app", ids(run_as_user=4321, run_as_group=5432), Seen(4321, 5432, [5432]), "/"),
    "memberships stay with a gid of its own": (
        "plain",
        ids(run_as_user=1000, run_as_group=5432),
        Seen(1000, 5432, [29, 44, 5432, 50000]),
        "/srv/app",
    ),
    "gid 0": ("app", ids(run_as_user=2000, run_as_group=0), Seen(2000, 0, [0, 44]), "/srv/ops"),
    "name": ("plain", {"run_as_username": "ops"}, Seen(2000, 3000, [44, 3000]), "/srv/ops"),
    "name of digits": ("plain", {"run_as_username": "1234"}, Seen(1234, 0, [0]), "/"),
    "name and gid": (
        "plain",
        {"run_as_username": "ops", **ids(run_as_group=50)},
        Seen(2000, 50, [44, 50]),
        "/srv/ops",
    ),
    "supplemental groups": (
        "app",
        {"supplemental_groups": [60000, 7, 44]},
        Seen(1000, 1000, [7, 29, 44, 1000, 50000, 60000]),
        "/srv/app",
    ),
    "strict": ("app", {"supplemental_groups_policy": pb.Strict}, Seen(1000, 1000, [1000]), "/srv/app"),
    "strict root": ("plain", {"supplemental_groups_policy": pb.Strict}, Seen(0, 0, [0]), "/root"),
    "strict with a gid and groups": (
        "app",
        {
            "supplemental_groups_policy": pb.Strict,
            "supplemental_groups": [1234],
            **ids(run_as_user=1000, run_as_group=50000),
        },
        Seen(1000, 50000, [1234, 50000]),
        "/srv/app",
    ),
}


@pytest.mark.parametrize(("image", "context", "expected", "home"), CASES.values(), ids=CASES.keys())
def test_a_container_runs_as_the_requested_user(
    kubelet: Kubelet,
    served: Served,
    pod: Pod,
    people: Mapping[str, str],
    image: str,
    context: dict[str, Any],
    expected: Seen,
    home: str,
) -> None:
    reported = "tr '\\0' '\\n' </proc/1/environ | sed -n 's/^HOME=//p'; echo $HOME"
    container = kubelet.started(pod, image=people[image], **in_own_pids(context))

    expect_identity(kubelet, served, container, expected)
    assert kubelet.inside(container, reported).split() == [home, home]


def in_own_pids(context: dict[str, Any]) -> dict[str, Any]:
    """Add a PID namespace for the container, so that an exec finds its first process as process 1."""
    return secured(namespace_options=pb.NamespaceOption(pid=pb.CONTAINER), **context)


def test_a_user_of_the_image_keeps_its_group_and_gets_supplemental_groups(
    kubelet: Kubelet, pod: Pod, people: Mapping[str, str]
) -> None:
    """The container of the conformance tests: a user with a group in the image, and a further group in the request."""
    context = {**ids(run_as_user=2000, run_as_group=1000), "supplemental_groups": [1234]}
    merged = kubelet.started(pod, image=people["plain"], **secured(**context))
    strict = kubelet.started(pod, image=people["plain"], **secured(supplemental_groups_policy=pb.Strict, **context))

    assert [kubelet.inside(made, "id -G") for made in (merged, strict)] == ["1000 44 1234\n", "1000 1234\n"]


def test_a_restarted_server_reports_the_users_of_containers(
    kubelet: Kubelet, served: Served, pod: Pod, people: Mapping[str, str]
) -> None:
    container = kubelet.started(pod, image=people["app"], **secured(supplemental_groups=[7]))
    served.server.kill()
    served.restart()

    expect_identity(kubelet, served, container, Seen(1000, 1000, [7, *APP_GROUPS]))


def test_pause_runs_as_the_pods_user(kubelet: Kubelet, served: Served) -> None:
    context = pb.LinuxSandboxSecurityContext(
        supplemental_groups=[3456],
        supplemental_groups_policy=pb.Strict,
        readonly_rootfs=True,
        run_as_user=pb.Int64Value(value=1234),
    )
    pod = kubelet.pod(linux=pb.LinuxPodSandboxConfig(security_context=context))

    assert seen(Path(f"/proc/{pid_of(served, pod.id)}/status").read_text()) == Seen(1234, 0, [0, 3456])


def test_supplemental_groups_policies_are_advertised(served: Served) -> None:
    assert served.cri.runtime.Status(pb.StatusRequest()).features.supplemental_groups_policy


# --- users that cannot be resolved ----------------------------------------------------------------------------------


def refused(kubelet: Kubelet, served: Served, pod: Pod, **fields: Any) -> tuple[grpc.StatusCode, str]:
    """Assert that CreateContainer refuses these fields and leaves nothing; return code and message."""
    before = served.snapshot()
    with pytest.raises(grpc.RpcError) as refusal:
        kubelet.created(pod, **fields)
    assert served.snapshot() == before
    return failure(refusal)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown name": ({"run_as_username": "nobody-here"}, "run_as_username: user 'nobody-here' is not in /etc/passwd"),
    "name of an unreadable line": ({"run_as_username": "torn"}, "run_as_username: user 'torn' is not in /etc/passwd"),
    "name of too many digits": ({"run_as_username": "4294967296"}, "run_as_username: user '4294967296' is above"),
    "group alone": (ids(run_as_group=1), "run_as_group needs run_as_user"),
    "uid too large": (ids(run_as_user=2**31), "run_as_user 2147483648"),
    "gid too large": (ids(run_as_user=1, run_as_group=2**32), "run_as_group 4294967296"),
    "negative uid": (ids(run_as_user=-1), "run_as_user -1"),
    "negative group": ({"supplemental_groups": [5, -1]}, "supplemental_groups[1] -1"),
    "unknown policy": ({"supplemental_groups_policy": 7}, "supplemental_groups_policy has the unknown value 7"),
}


@pytest.mark.parametrize(("context", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_an_unknown_user_is_refused_by_the_name_of_the_field(
    kubelet: Kubelet, served: Served, pod: Pod, people: Mapping[str, str], context: dict[str, Any], says: str
) -> None:
    code, message = refused(kubelet, served, pod, image=people["plain"], **secured(**context))

    assert code == Code.INVALID_ARGUMENT
    assert f"config.linux.security_context.{says}" in message


@pytest.mark.parametrize(
    ("user", "says"),
    [
        ("ghost", "runs as user 'ghost', who is not in its /etc/passwd"),
        ("torn", "runs as user 'torn', who is not in its /etc/passwd"),
        ("app:ghosts", "runs with group 'ghosts', which is not in its /etc/group"),
        ("4294967295", "runs as user '4294967295', which is above 2147483647"),
    ],
    ids=["user", "unreadable line", "group", "number"],
)
def test_an_image_whose_user_is_unknown_is_refused(
    kubelet: Kubelet, served: Served, pod: Pod, node: Node, user: str, says: str
) -> None:
    with made_image(served, node, "unknown", files=FILES, user=user) as image:
        code, message = refused(kubelet, served, pod, image=image)
        container = kubelet.started(pod, image=image, **secured(**ids(run_as_user=2000)))
        expect_identity(kubelet, served, container, Seen(2000, 3000, [44, 3000]))
        kubelet.cri.remove_container(container)

    assert code == Code.FAILED_PRECONDITION
    assert f"config.image.image '{image}' {says}" in message


@pytest.mark.parametrize("group", [5678, 6789], ids=["group 0", "unreadable number"])
@pytest.mark.parametrize("place", ["primary", "supplemental"])
def test_a_group_number_that_the_image_gives_another_name_is_refused(
    kubelet: Kubelet, served: Served, pod: Pod, people: Mapping[str, str], group: int, place: str
) -> None:
    """Docker and runc would both use group 0."""
    context: dict[str, Any] = (
        ids(run_as_user=1, run_as_group=group) if place == "primary" else {"supplemental_groups": [group]}
    )
    code, message = refused(kubelet, served, pod, image=people["plain"], **secured(**context))

    assert code == Code.FAILED_PRECONDITION
    assert f"'{people['plain']}' gives the group named {group} another gid" in message


def passwd_link(target: str, *more: File) -> tuple[File, ...]:
    return (File("etc/passwd", link=target), File("etc/group", GROUP), *more)


WITHOUT_PASSWD: dict[str, tuple[tuple[File, ...], Seen]] = {
    "neither file": ((), Seen(2000, 0, [0])),
    "a link out, to a file of the host": (passwd_link("../../../../../../etc/hostname"), Seen(2000, 0, [0])),
    "a link out, that has the same name inside": (
        passwd_link(
            "../../../../../../real/passwd", File("real", mode=0o755, directory=True), File("real/passwd", PASSWD)
        ),
        Seen(2000, 3000, [44, 3000]),
    ),
    "a link to nothing": (passwd_link("/nowhere"), Seen(2000, 0, [0])),
}


@pytest.mark.parametrize(("files", "expected"), WITHOUT_PASSWD.values(), ids=WITHOUT_PASSWD.keys())
def test_links_never_lead_out_of_an_image(
    kubelet: Kubelet, served: Served, pod: Pod, node: Node, files: tuple[File, ...], expected: Seen
) -> None:
    with made_image(served, node, "links", files=files, user="") as image:
        container = kubelet.started(pod, image=image, **secured(**ids(run_as_user=2000)))
        expect_identity(kubelet, served, container, expected)
        code, message = refused(kubelet, served, pod, image=image, **secured(run_as_username="root-"))
        kubelet.cri.remove_container(container)

    assert code == Code.INVALID_ARGUMENT
    assert "run_as_username: user 'root-' is not in /etc/passwd" in message


ODD: dict[str, tuple[File, str]] = {
    "fifo": (File("etc/passwd", fifo=True), "is neither a file nor a directory, not a regular file"),
    "directory": (File("etc/passwd", mode=0o755, directory=True), "is a directory, not a regular file"),
    "100 MiB": (File("etc/passwd", bytes(100 << 20)), f"has {100 << 20} bytes, the limit is {4 << 20}"),
}


@pytest.mark.parametrize(("file", "says"), ODD.values(), ids=ODD.keys())
def test_a_passwd_that_is_no_regular_file_is_refused(
    kubelet: Kubelet, served: Served, pod: Pod, node: Node, file: File, says: str
) -> None:
    with made_image(served, node, "odd", files=(file,), user="") as image:
        code, message = refused(kubelet, served, pod, image=image, **secured(run_as_username="app"))

    assert code == Code.FAILED_PRECONDITION
    assert "/etc/passwd of image sha256:" in message
    assert says in message


def test_a_loop_of_links_is_refused(kubelet: Kubelet, served: Served, pod: Pod, node: Node) -> None:
    with made_image(served, node, "loop", files=passwd_link("passwd"), user="") as image:
        code, message = refused(kubelet, served, pod, image=image)

    assert code == Code.UNKNOWN
    assert "read /etc/passwd in container" in message
    assert "too many links" in message


def test_users_are_found_although_a_volume_of_the_image_hides_passwd(
    kubelet: Kubelet, served: Served, pod: Pod, node: Node
) -> None:
    before = volumes(served)
    with made_image(served, node, "volume", files=FILES, user="app", volume="/etc") as image:
        container = kubelet.started(pod, image=image)
        expect_identity(kubelet, served, container, Seen(1000, 1000, APP_GROUPS))
        kubelet.cri.remove_container(container)

    assert volumes(served) == before


def volumes(served: Served) -> set[str]:
    return {volume["Name"] for volume in served.engine.api.volumes()["Volumes"] or []}


# --- inspections leave nothing ----------------------------------------------------------------------------------


def test_an_image_inspection_is_invisible(kubelet: Kubelet, served: Served, pod: Pod, node: Node) -> None:
    before = listed(served)
    with made_image(served, node, "quiet", files=FILES, user="app") as image:
        container = kubelet.created(pod, image=image)
        after = listed(served)
        kubelet.cri.remove_container(container)

    assert after == {*before, container}
    assert inspection_containers(served) == []


def test_an_image_inspection_interrupted_by_a_crash_is_cleaned_up(served: Served, people: Mapping[str, str]) -> None:
    labels = {"io.pydockershim.look": "rootfs"}
    made = served.engine.api.create_container(
        people["app"], command=["-"], name=INSPECTION_PREFIX + "of-a-crash", labels=labels
    )
    wait_until(lambda: made["Id"] in inspection_containers(served))
    served.server.kill()
    served.restart()

    wait_until(lambda: inspection_containers(served) == [])


def listed(served: Served) -> set[str]:
    """Return the ids of all sandboxes, containers and images that the server lists."""
    return {made.id for made in served.cri.containers()} | {made.id for made in served.cri.sandboxes()}


def inspection_containers(served: Served) -> list[str]:
    """Return the ids of the image-inspection containers."""
    return [row["Id"] for row in served.engine.api.containers(all=True, filters={"name": INSPECTION_PREFIX})]
