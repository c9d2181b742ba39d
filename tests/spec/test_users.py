"""The user of a container: request, image, and the fields that Docker gets and returns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shim.api.v1 import api_pb2 as pb
from shim.domain.errors import FailedPrecondition, InvalidArgument, ShimError
from shim.domain.passwd import MAX_ID, ImageAccounts, accounts_from_files
from shim.spec.users import (
    DockerUser,
    Identity,
    asks_for_identity,
    container_user,
    docker_user,
    identity,
)

FIELD = "config.linux.security_context"
ACCOUNTS = accounts_from_files(
    passwd=b"""\
root:x:0:0:root:/root:/bin/sh
www:x:1000:1001::/home:/bin/sh
1234:x:0:0:digits:/:/bin/sh
twice:x:2000:2001::/:
twice:x:3000:3001::/:
same:x:2000:2002::/:
largest:x:2147483647:2147483647::/:
torn:x:oops:5::/:
""",
    group=b"""\
root:x:0:
wheel:x:10:root,www
staff:x:50:www,nobody
www:x:1001:
own:x:1001:www
again:x:50:www
twices:x:70:twice
5555:x:7:
""",
)


def who(policy: pb.SupplementalGroupsPolicy = pb.Merge, *, user: str = "", **context: Any) -> Identity:
    """Resolve an identity in an image whose `USER` is `user`."""
    for name in ("run_as_user", "run_as_group"):
        if name in context:
            context[name] = pb.Int64Value(value=context[name])
    made = pb.LinuxContainerSecurityContext(supplemental_groups_policy=policy, **context)
    return identity(made, ImageAccounts(default_user=user, accounts=ACCOUNTS), image="config.image.image 'web:1'")


def numbers(uid: int, gid: int, *groups: int) -> Identity:
    return Identity(uid=uid, gid=gid, groups=groups)


ASKED: dict[str, tuple[dict[str, Any], Identity]] = {
    "nothing": ({}, numbers(0, 0, 0, 10)),
    "uid with an entry": ({"run_as_user": 1000}, numbers(1000, 1001, 10, 50, 1001)),
    "uid without an entry": ({"run_as_user": 77}, numbers(77, 0, 0)),
    "uid of digits that are a name": ({"run_as_user": 1234}, numbers(1234, 0, 0)),
    "uid and gid": ({"run_as_user": 77, "run_as_group": 88}, numbers(77, 88, 88)),
    "uid with an entry, and gid": (
        {"run_as_user": 1000, "run_as_group": 88},
        numbers(1000, 88, 10, 50, 88, 1001),
    ),
    "gid 0 is a gid": ({"run_as_user": 1000, "run_as_group": 0}, numbers(1000, 0, 0, 10, 50, 1001)),
    "root over the image's user": ({"run_as_user": 0, "user": "www"}, numbers(0, 0, 0, 10)),
    "name": ({"run_as_username": "www"}, numbers(1000, 1001, 10, 50, 1001)),
    "name and gid": ({"run_as_username": "www", "run_as_group": 5}, numbers(1000, 5, 5, 10, 50, 1001)),
    "name of digits is a uid": ({"run_as_username": "1234"}, numbers(1234, 0, 0)),
    "name of digits with an entry": ({"run_as_username": "01000"}, numbers(1000, 1001, 10, 50, 1001)),
    "the first of two names": ({"run_as_username": "twice"}, numbers(2000, 2001, 70, 2001)),
    "the first of two uids": ({"run_as_user": 2000}, numbers(2000, 2001, 70, 2001)),
    "the named one of two with one uid": ({"run_as_username": "same"}, numbers(2000, 2002, 2002)),
    "the largest": ({"run_as_username": "largest"}, numbers(MAX_ID, MAX_ID, MAX_ID)),
    "image: name": ({"user": "www"}, numbers(1000, 1001, 10, 50, 1001)),
    "image: uid": ({"user": "1000"}, numbers(1000, 1001, 10, 50, 1001)),
    "image: uid without an entry": ({"user": "77"}, numbers(77, 0, 0)),
    "image: name and group": ({"user": "www:staff"}, numbers(1000, 50, 10, 50, 1001)),
    "image: name and gid": ({"user": "www:60"}, numbers(1000, 60, 10, 50, 60, 1001)),
    "image: uid and gid": ({"user": "65535:65535"}, numbers(65535, 65535, 65535)),
    "image: group alone": ({"user": ":staff"}, numbers(0, 50, 10, 50)),
    "image: empty group": ({"user": "www:"}, numbers(1000, 1001, 10, 50, 1001)),
    "the image's group is its user's alone": ({"user": "www:staff", "run_as_user": 77}, numbers(77, 0, 0)),
    "supplemental": ({"run_as_user": 77, "supplemental_groups": [9, 8, 9]}, numbers(77, 0, 0, 8, 9)),
    "supplemental of the image's user": (
        {"user": "www", "supplemental_groups": [50, 60]},
        numbers(1000, 1001, 10, 50, 60, 1001),
    ),
    "strict": ({"policy": pb.Strict, "run_as_user": 1000}, numbers(1000, 1001, 1001)),
    "strict with all": (
        {"policy": pb.Strict, "run_as_username": "www", "run_as_group": 5, "supplemental_groups": [9]},
        numbers(1000, 5, 5, 9),
    ),
    "strict image": ({"policy": pb.Strict, "user": "www:staff"}, numbers(1000, 50, 50)),
}


@pytest.mark.parametrize(("asked", "expected"), ASKED.values(), ids=ASKED.keys())
def test_the_requested_identity_is_resolved_in_the_image(asked: dict[str, Any], expected: Identity) -> None:
    assert who(**asked) == expected


REFUSED: dict[str, tuple[dict[str, Any], type[ShimError], str]] = {
    "name": (
        {"run_as_username": "nobody-here"},
        InvalidArgument,
        f"{FIELD}.run_as_username: user 'nobody-here' is not in /etc/passwd of config.image.image 'web:1'",
    ),
    "name of an unreadable line": (
        {"run_as_username": "torn"},
        InvalidArgument,
        f"{FIELD}.run_as_username: user 'torn' is not in /etc/passwd",
    ),
    "negative name": ({"run_as_username": "-1"}, InvalidArgument, "user '-1' is not in /etc/passwd"),
    "name of digits": (
        {"run_as_username": "2147483648"},
        InvalidArgument,
        f"{FIELD}.run_as_username: user '2147483648' is above 2147483647",
    ),
    "image: user": (
        {"user": "app"},
        FailedPrecondition,
        "config.image.image 'web:1' runs as user 'app', who is not in its /etc/passwd",
    ),
    "image: uid": (
        {"user": "4294967296"},
        FailedPrecondition,
        "config.image.image 'web:1' runs as user '4294967296', which is above 2147483647",
    ),
    "image: group": (
        {"user": "www:app"},
        FailedPrecondition,
        "config.image.image 'web:1' runs with group 'app', which is not in its /etc/group",
    ),
    "image: gid": (
        {"user": "0:99999999999"},
        FailedPrecondition,
        "config.image.image 'web:1' runs with group '99999999999', which is above 2147483647",
    ),
    "image: three parts": ({"user": "www:staff:x"}, FailedPrecondition, "runs with group 'staff:x'"),
}


@pytest.mark.parametrize(("asked", "error", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_users_and_groups_unknown_to_the_image_are_refused(
    asked: dict[str, Any], error: type[ShimError], says: str
) -> None:
    with pytest.raises(error) as refused:
        who(**asked)
    assert says in str(refused.value)


def test_a_sandbox_has_no_user_by_name() -> None:
    context = pb.LinuxSandboxSecurityContext(run_as_user=pb.Int64Value(value=1000), supplemental_groups=[9])

    found = identity(context, ImageAccounts(default_user="65535:65535", accounts=ACCOUNTS), image="the pause image")

    assert found == numbers(1000, 1001, 9, 10, 50, 1001)


@pytest.mark.parametrize(
    ("context", "asks"),
    [
        ({}, False),
        ({"privileged": True}, False),
        ({"run_as_user": pb.Int64Value(value=0)}, True),
        ({"supplemental_groups": [5]}, True),
        ({"supplemental_groups_policy": pb.Strict}, True),
    ],
)
def test_most_pods_request_no_user_for_pause(context: dict[str, Any], asks: bool) -> None:
    assert asks_for_identity(pb.LinuxSandboxSecurityContext(**context)) is asks


@pytest.mark.parametrize(
    "asked",
    [
        {"run_as_user": 77, "run_as_group": 5555},
        {"run_as_user": 77, "supplemental_groups": [1, 5555]},
        {"user": "77:5555"},
        {"policy": pb.Strict, "supplemental_groups": [5555]},
    ],
)
def test_a_gid_that_names_another_group_is_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(FailedPrecondition, match="gives the group named 5555 another gid"):
        who(**asked)


def test_docker_gets_numbers_and_adds_the_primary_group_itself() -> None:
    assert docker_user(numbers(1000, 50, 10, 50, 60)) == DockerUser(user="1000:50", group_add=("10", "60"))


_ID = st.integers(0, MAX_ID)


@given(_ID, _ID, st.sets(_ID))
def test_the_user_round_trips_through_docker(uid: int, gid: int, groups: set[int]) -> None:
    made = docker_user(Identity(uid=uid, gid=gid, groups=tuple(sorted({gid, *groups}))))

    seen = container_user(made.user, made.group_add)

    assert seen == pb.ContainerUser(
        linux=pb.LinuxContainerUser(uid=uid, gid=gid, supplemental_groups=sorted({gid, *groups}))
    )


@pytest.mark.parametrize(
    ("user", "group_add"),
    [
        ("", []),
        ("www", None),
        ("1000", None),
        ("1000:", None),
        ("www:1000", None),
        ("1000:www", None),
        ("1000:1000:1000", None),
        ("1000:1000", ["video"]),
        ("99999999999999999999:0", None),
        ("0:0", ["4294967296"]),
    ],
)
def test_a_user_that_is_not_numeric_is_unknown(user: str, group_add: list[str] | None) -> None:
    assert container_user(user, group_add) is None
