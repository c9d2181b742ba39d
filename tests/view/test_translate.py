"""The recorded answers of two real Engines become the records that the CRI needs."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shim.api.v1 import api_pb2 as pb
from shim.domain import labels
from shim.engine.answers import ContainerInspect, ContainerSummary, HostSettings, ImageInspect, ImageSummary
from shim.view import changes, translate
from shim.view.records import ContainerRecord, Record, SandboxRecord
from tests.view.samples import ENGINES, Recording, container, container_state

RECORDINGS = {engine: Recording(engine) for engine in (*ENGINES, "28-containerd")}
EVERYTHING = [
    "sandbox", "created", "running", "paused", "completed", "failed", "start-error", "oom", "killed",
    "foreign-sandbox", "foreign-container", "stranger",
]  # fmt: skip


@pytest.fixture(params=ENGINES)
def recording(request: pytest.FixtureRequest) -> Recording:
    return RECORDINGS[request.param]


def record_of(seen: ContainerInspect) -> Record:
    record = translate.record_from_inspect(seen, previous=None)
    assert record is not None
    return record


def container_of(seen: ContainerInspect) -> ContainerRecord:
    record = record_of(seen)
    assert isinstance(record, ContainerRecord)
    return record


def sandbox_of(seen: ContainerInspect) -> SandboxRecord:
    record = record_of(seen)
    assert isinstance(record, SandboxRecord)
    return record


def altered(seen: ContainerInspect, **changes: Any) -> ContainerInspect:
    """Return `seen` with changes to its state."""
    return msgspec.structs.replace(seen, state=msgspec.structs.replace(seen.state, **changes))


def with_labels(seen: ContainerInspect, **changes: str | None) -> ContainerInspect:
    tags = {**(seen.config.labels or {}), **changes}
    kept = {key: value for key, value in tags.items() if value is not None}
    return msgspec.structs.replace(seen, config=msgspec.structs.replace(seen.config, labels=kept))


@pytest.mark.parametrize(
    ("what", "state", "reason", "exit_code"),
    [
        ("created", pb.CONTAINER_CREATED, "", 0),
        ("running", pb.CONTAINER_RUNNING, "", 0),
        ("paused", pb.CONTAINER_RUNNING, "", 0),
        ("completed", pb.CONTAINER_EXITED, "Completed", 0),
        ("failed", pb.CONTAINER_EXITED, "Error", 3),
        ("oom", pb.CONTAINER_EXITED, "OOMKilled", 137),
        ("killed", pb.CONTAINER_EXITED, "Error", 137),
        ("start-error", pb.CONTAINER_EXITED, "StartError", 128),
    ],
)
def test_dockers_state_becomes_the_cri_state(
    recording: Recording, what: str, state: pb.ContainerState, reason: str, exit_code: int
) -> None:
    found = container_of(recording.inspect(what)).state
    assert (found.phase, found.reason, found.exit_code) == (state, reason, exit_code)
    assert bool(found.pid) == found.running == (state == pb.CONTAINER_RUNNING)
    assert found.created_at > 0
    assert (found.started_at > 0) == (state != pb.CONTAINER_CREATED)
    assert (found.finished_at > 0) == (state == pb.CONTAINER_EXITED)
    assert not found.finished_at or found.created_at <= found.started_at <= found.finished_at


def test_times_are_dockers_to_the_nanosecond() -> None:
    found = sandbox_of(RECORDINGS["20.10"].inspect("sandbox")).state
    assert (found.created_at, found.started_at) == (1795226702_897882479, 1795226703_070187916)


def test_a_failed_start_says_why(recording: Recording) -> None:
    found = container_of(recording.inspect("start-error")).state
    assert 'exec: "/no/such/program"' in found.message
    assert found.started_at == found.finished_at == found.created_at


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({"status": "removing"}, pb.CONTAINER_EXITED, "Error"),
        ({"status": "dead"}, pb.CONTAINER_EXITED, "Error"),
        ({"status": "restarting"}, pb.CONTAINER_RUNNING, ""),
        ({"oom_killed": True}, pb.CONTAINER_EXITED, "Error"),
        ({"oom_killed": True, "exit_code": 0}, pb.CONTAINER_EXITED, "Completed"),
        ({"status": "created", "exit_code": 0, "error": "no such network"}, pb.CONTAINER_EXITED, "StartError"),
        ({"status": "levitating"}, pb.CONTAINER_UNKNOWN, ""),
        ({"status": ""}, pb.CONTAINER_UNKNOWN, ""),
    ],
    ids=["removing", "dead", "restarting", "oom of a child", "oom and done", "start failed", "new state", "no state"],
)
def test_rare_states_are_translated(
    recording: Recording, changes: dict[str, Any], state: pb.ContainerState, reason: str
) -> None:
    found = container_of(altered(recording.inspect("failed"), **changes)).state
    assert (found.phase, found.reason) == (state, reason)
    assert state != pb.CONTAINER_UNKNOWN or repr(changes["status"]) in found.message


@pytest.mark.parametrize("status", ["removing", "dead"])
def test_a_container_removed_before_its_start_has_failed(recording: Recording, status: str) -> None:
    found = container_of(altered(recording.inspect("created"), status=status)).state
    assert (found.phase, found.started_at, found.finished_at) == (pb.CONTAINER_EXITED, 0, found.created_at)
    assert (found.exit_code, found.reason) == (255, "Unknown")
    assert "never started" in found.message


@pytest.mark.parametrize("status", ["removing", "dead"])
def test_a_failed_start_stays_during_the_removal(recording: Recording, status: str) -> None:
    seen = recording.inspect("start-error")
    assert container_of(altered(seen, status=status)).state == container_of(seen).state


def test_a_running_container_shows_no_exit_of_an_earlier_run(recording: Recording) -> None:
    ended = recording.inspect("failed").state.finished_at
    found = container_of(altered(recording.inspect("running"), finished_at=ended, exit_code=3)).state
    assert (found.finished_at, found.exit_code, found.reason) == (0, 0, "")


def test_the_record_of_a_sandbox_of_this_server(recording: Recording) -> None:
    found = sandbox_of(recording.inspect("sandbox"))
    assert found.config.metadata == pb.PodSandboxMetadata(
        name="web-0", namespace="shop", uid="6a1c9b58-2f2e-4d54-8f0b-0d1c5f2d7f10", attempt=1
    )
    assert (dict(found.config.labels), dict(found.config.annotations)) == ({"app": "web"}, {"note": "a=b"})
    assert (found.runtime_handler, found.legacy) == ("runc", False)
    assert found.name == "k8s_POD_web-0_shop_6a1c9b58-2f2e-4d54-8f0b-0d1c5f2d7f10_1"


def test_the_record_of_a_container_of_this_server(recording: Recording) -> None:
    found = container_of(recording.inspect("running"))
    assert found.config.metadata == pb.ContainerMetadata(name="running", attempt=2)
    assert found.sandbox_id == recording.inspect("sandbox").id
    assert found.log_path == "/var/log/pods/shop_web-0/running/2.log"
    assert (found.stop_signal, found.image_id) == ("SIGQUIT", recording.inspect("running").image)
    assert (found.host.memory, found.host.cpu_quota, found.host.cpu_shares) == (64 << 20, 50000, 512)
    assert found.user == "1000:2000"
    assert (dict(found.config.labels), dict(found.config.annotations)) == ({"tier": "front"}, {"k": "v"})


@pytest.mark.parametrize("what", ["running", "sandbox"])
def test_the_configuration_is_parsed_once(recording: Recording, what: str) -> None:
    first = record_of(recording.inspect(what))
    again = with_labels(altered(recording.inspect(what), status="exited"), **{labels.CONFIG: "{not read}"})
    second = translate.record_from_inspect(again, previous=first)
    assert second is not None
    assert second.config is first.config
    assert second.state.phase == pb.CONTAINER_EXITED


def test_the_record_of_a_legacy_sandbox(recording: Recording) -> None:
    found = sandbox_of(recording.inspect("foreign-sandbox"))
    assert found.legacy
    assert found.config.metadata == pb.PodSandboxMetadata(name="old-0", namespace="shop", uid="aaaa-bbbb", attempt=3)
    assert dict(found.config.labels) == {"app": "old", "io.kubernetes.pod.name": "old-0"}
    assert dict(found.config.annotations) == {"note": "x"}
    options = found.config.linux.security_context.namespace_options
    assert (options.network, options.pid, options.ipc) == (pb.POD, pb.NODE, pb.POD)
    assert found.state.running


def test_the_record_of_a_legacy_container(recording: Recording) -> None:
    found = container_of(recording.inspect("foreign-container"))
    assert found.legacy
    assert found.config.metadata == pb.ContainerMetadata(name="app", attempt=4)
    assert found.config.image.image == "docker.io/library/busybox:latest"
    assert found.sandbox_id == recording.inspect("foreign-sandbox").id
    assert found.log_path == "/var/log/pods/old/app/4.log"
    assert dict(found.config.labels) == {"tier": "back", "io.kubernetes.container.name": "app"}
    assert dict(found.config.annotations) == {"k": "v"}


FORGED = {labels.CONFIG: '{"metadata": {"name": "forged", "attempt": 9}, "labels": {"app": "forged"}}'}


def test_an_image_cannot_make_a_legacy_container_ours(recording: Recording) -> None:
    seen = with_labels(recording.inspect("foreign-container"), **FORGED)
    seen = msgspec.structs.replace(seen, name="/k8s_c_pod_ns_uid_0")
    found = container_of(seen)
    assert found.legacy
    assert found.config.metadata == pb.ContainerMetadata(name="c", attempt=0)
    assert found.config.labels["tier"] == "back"


def test_an_inspect_corrects_a_legacy_container_that_the_list_shows_as_ours(recording: Recording) -> None:
    listed = recording.listed("foreign-container")
    listed = msgspec.structs.replace(listed, labels={**(listed.labels or {}), **FORGED})
    from_list = translate.from_list_only(None, listed=listed)
    assert from_list is not None
    assert not from_list.legacy
    seen = with_labels(recording.inspect("foreign-container"), **FORGED)
    found = translate.record_from_inspect(seen, previous=from_list)
    assert found == record_of(seen)
    assert found.legacy


def test_a_pod_with_an_unreadable_label_can_be_removed(recording: Recording) -> None:
    found = sandbox_of(with_labels(recording.inspect("sandbox"), **{labels.CONFIG: '{"metadata": 7}'}))
    assert found.legacy
    assert found.config.metadata.name == "web-0"


@pytest.mark.parametrize(
    ("what", "name", "changes"),
    [
        ("stranger", None, {}),
        ("stranger", None, {labels.CONFIG: "{}", labels.TYPE: labels.TYPE_CONTAINER}),
        ("foreign-container", "/k8s_app_with_an_extra_word_4", {}),
        ("foreign-container", None, {labels.TYPE: None}),
        ("foreign-container", None, {labels.TYPE: "volume"}),
    ],
    ids=["stranger", "labels of an image", "other name", "no type", "other type"],
)
def test_a_container_of_no_pod_has_no_record(
    recording: Recording, what: str, name: str | None, changes: dict[str, str | None]
) -> None:
    seen = with_labels(recording.inspect(what), **changes)
    seen = msgspec.structs.replace(seen, name=name or seen.name)
    assert translate.record_from_inspect(seen, previous=None) is None


@pytest.mark.parametrize("what", ["sandbox", "running"])
@pytest.mark.parametrize("known", [True, False], ids=["known before", "after a restart"])
def test_a_renamed_container_stays_in_its_pod(recording: Recording, what: str, known: bool) -> None:
    seen = recording.inspect(what)
    renamed = msgspec.structs.replace(seen, name="/mine")
    found = translate.record_from_inspect(renamed, previous=record_of(seen) if known else None)
    assert found == replace(record_of(seen), name="mine")
    listed = msgspec.structs.replace(recording.listed(what), names=["/mine"])
    assert translate.agrees(listed, found)
    from_list = translate.from_list_only(None, listed=listed)
    assert from_list is not None
    assert from_list.config.metadata == found.config.metadata


@pytest.mark.parametrize("what", ["foreign-sandbox", "foreign-container"])
def test_a_renamed_legacy_container_stays_until_a_restart(recording: Recording, what: str) -> None:
    seen = recording.inspect(what)
    renamed = msgspec.structs.replace(seen, name="/mine")
    assert translate.record_from_inspect(renamed, previous=record_of(seen)) == replace(record_of(seen), name="mine")
    assert translate.record_from_inspect(renamed, previous=None) is None


@pytest.mark.parametrize("name", ["/debug", "/k8s_running_web-0_shop_6a1c9b58-2f2e-4d54-8f0b-0d1c5f2d7f10_2"])
@pytest.mark.parametrize("network", ["bridge", "none", "host", "container:" + "c" * 64])
@pytest.mark.parametrize("init", [None, False])
def test_a_users_container_of_a_committed_image_is_of_no_pod(
    recording: Recording, name: str, network: str, init: bool | None
) -> None:
    seen = recording.inspect("running")
    host = HostSettings(network_mode=network, init=init)
    strange = msgspec.structs.replace(seen, name=name, host_config=host)
    assert translate.record_from_inspect(strange, previous=None) is None
    listed = msgspec.structs.replace(recording.listed("running"), names=[name], host_config=host)
    assert not translate.may_be_of_a_pod(listed)
    assert translate.from_list_only(None, listed=listed) is None


@pytest.mark.parametrize("name", ["k8s_running_web_shop_u_0", "debug"])
def test_a_users_container_of_a_committed_image_in_the_network_of_the_pod_is_of_no_pod(
    recording: Recording, name: str
) -> None:
    seen = with_labels(recording.inspect("running"), **{labels.CREATED_AS: "k8s_running_web_shop_u_0"})
    host = HostSettings(network_mode=seen.host_config.network_mode, init=False, userns_mode="host")
    strange = msgspec.structs.replace(seen, name=f"/{name}", host_config=host)
    assert translate.record_from_inspect(strange, previous=None) is None


@pytest.mark.parametrize("name", ["k8s_POD_web_shop_u_0", "k8s_POD_web_shop_u_1", "debug"])
def test_a_users_container_of_a_committed_pause_container_is_no_sandbox(recording: Recording, name: str) -> None:
    """Also with the name of a later attempt, as earlier Docker shims give it."""
    seen = with_labels(recording.inspect("sandbox"), **{labels.CREATED_AS: "k8s_POD_web_shop_u_0"})
    strange = msgspec.structs.replace(seen, name=f"/{name}", host_config=HostSettings(network_mode="none", init=False))
    assert translate.record_from_inspect(strange, previous=None) is None


@pytest.mark.parametrize("what", EVERYTHING)
def test_a_list_agrees_with_an_inspect(recording: Recording, what: str) -> None:
    record = translate.record_from_inspect(recording.inspect(what), previous=None)
    assert translate.agrees(recording.listed(what), record)
    assert translate.may_be_of_a_pod(recording.listed(what)) == (record is not None)


@pytest.mark.parametrize(
    ("change", "agrees"),
    [({"state": "exited"}, False), ({"names": ["/k8s_other"]}, False), ({"names": ["/x/alias", None]}, True)],
    ids=["state", "name", "alias of a link"],
)
def test_differences_between_list_and_record_are_found(
    recording: Recording, change: dict[str, Any], agrees: bool
) -> None:
    listed, record = recording.listed("running"), record_of(recording.inspect("running"))
    if names := change.get("names"):
        change = {"names": [name or f"/{record.name}" for name in names]}
    assert translate.agrees(msgspec.structs.replace(listed, **change), record) is agrees


@pytest.mark.parametrize(
    ("what", "state"),
    [
        ("sandbox", pb.CONTAINER_RUNNING),
        ("running", pb.CONTAINER_RUNNING),
        ("foreign-container", pb.CONTAINER_RUNNING),
        ("created", pb.CONTAINER_CREATED),
        ("failed", pb.CONTAINER_UNKNOWN),
    ],
)
def test_a_record_is_made_from_a_list_alone(recording: Recording, what: str, state: pb.ContainerState) -> None:
    listed, known = recording.listed(what), record_of(recording.inspect(what))
    from_list = translate.from_list_only(None, listed=listed)
    assert from_list is not None
    assert (from_list.id, from_list.name, from_list.config.metadata) == (known.id, known.name, known.config.metadata)
    assert (from_list.state.phase, from_list.state.from_list_only) == (state, True)
    assert from_list.state.created_at == known.state.created_at // 10**9 * 10**9
    assert not translate.agrees(listed, from_list)
    assert translate.record_from_inspect(recording.inspect(what), previous=from_list) == known


def test_a_record_that_agrees_with_the_list_is_kept(recording: Recording) -> None:
    record, listed = record_of(recording.inspect("running")), recording.listed("running")
    assert translate.from_list_only(record, listed=listed) is record
    from_list = translate.from_list_only(record, listed=msgspec.structs.replace(listed, state="exited"))
    assert from_list is not None
    assert (from_list.state.phase, from_list.state.started_at) == (pb.CONTAINER_UNKNOWN, record.state.started_at)
    assert "exited" in from_list.state.message


def test_a_listed_container_of_no_pod_has_no_record(recording: Recording) -> None:
    assert translate.from_list_only(None, listed=recording.listed("stranger")) is None


@pytest.mark.parametrize(
    ("phase", "expected"),
    [(pb.CONTAINER_RUNNING, pb.CONTAINER_UNKNOWN), (pb.CONTAINER_EXITED, pb.CONTAINER_EXITED)],
)
def test_an_exited_container_never_becomes_unknown(phase: pb.ContainerState, expected: pb.ContainerState) -> None:
    record = container(state=container_state(phase, started=2))
    marked = translate.mark_unknown(record, message="no answer")
    assert marked is not None
    assert marked.state.phase == expected
    assert marked == record or marked.state == replace(record.state, phase=expected, pid=0, message="no answer")


def test_the_record_of_an_image(recording: Recording) -> None:
    found = {
        record.repo_tags[0]: record
        for record in (translate.record_from_image(recording.image_inspect(image.id)) for image in recording.images())
    }
    busybox = found["docker.io/library/busybox:latest"]
    assert busybox.repo_tags == ("docker.io/library/busybox:latest", "registry.example:5000/team/app:v1")
    assert (busybox.user, busybox.size) == ("1000:2000", 1984359)
    assert busybox.repo_digests == ()
    assert found["registry.k8s.io/pause:3.10"].user == "65535:65535"


def test_an_image_of_the_containerd_store_has_all_its_digests() -> None:
    recording = RECORDINGS["28-containerd"]
    image = next(image for image in recording.images() if "busybox:latest" in (image.repo_tags or ()))
    digest = image.id
    found = translate.record_from_image_list(image, known=None)
    assert found.repo_digests == (
        f"docker.io/library/busybox@{digest}",
        f"registry.example:5000/team/app@{digest}",
    )


@pytest.mark.parametrize("engine", RECORDINGS)
def test_a_listed_image_has_the_names_and_size_of_its_inspect(engine: str) -> None:
    recording = RECORDINGS[engine]
    for image in recording.images():
        inspect = recording.image_inspect(image.id)
        inspected = translate.record_from_image(inspect)
        listed = translate.record_from_image_list(image, known=inspected)
        if inspect.size != image.size:  # the containerd image store, recorded without `manifests`
            listed = replace(listed, size=inspected.size)
        assert listed == inspected


def test_the_size_in_the_containerd_store_is_the_size_on_disk() -> None:
    answer = b'{"Id": "sha256:1", "Size": 5, "Manifests": [{"Size": {"Total": 9}}, {"Size": {"Total": 2}}]}'
    assert translate.record_from_image(msgspec.json.decode(answer, type=ImageInspect)).size == 11


def test_an_untagged_image_has_no_names() -> None:
    image = ImageSummary(id="sha256:1", repo_tags=["<none>:<none>"], repo_digests=["<none>@<none>"], size=3)
    found = translate.record_from_image_list(image, known=None)
    assert (found.repo_tags, found.repo_digests, found.user, found.size) == ((), (), "", 3)


def test_digest_among_the_tags_of_the_containerd_store_is_no_tag() -> None:
    digest = "registry.example/app@sha256:" + "ab" * 32
    image = ImageSummary(id="sha256:1", repo_tags=[digest], repo_digests=[digest])
    found = translate.record_from_image_list(image, known=None)
    assert (found.repo_tags, found.repo_digests) == ((), (digest,))


def test_a_listed_container_without_names_has_an_empty_name() -> None:
    assert translate.name_from_summary(ContainerSummary(id="1")) == ""


def test_a_missed_exit_stays_while_docker_reports_that_run_as_running(recording: Recording) -> None:
    seen = recording.inspect("running")
    missed = changes.missed_exit(record_of(seen), at=9)
    assert translate.record_from_inspect(seen, previous=missed) == missed
    assert translate.agrees(recording.listed("running"), missed)

    later = altered(seen, started_at="2099-01-01T00:00:00Z")
    again = translate.record_from_inspect(later, previous=missed)
    assert again is not None
    assert again.state.running

    exited = altered(seen, status="exited", running=False, exit_code=3)
    known = translate.record_from_inspect(exited, previous=missed)
    assert known is not None
    assert (known.state.exit_code, known.state.reason, known.state.missed_exit) == (3, "Error", False)
