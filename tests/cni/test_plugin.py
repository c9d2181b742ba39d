import json
from pathlib import Path

import pytest

from shim.base.meter import Kind, Measurement, subscribed
from shim.cni.plugin import Call, PluginError, Verb, run_add, run_plugin
from shim.cni.programs import find_plugins
from shim.domain.errors import DeadlineExceeded, FailedPrecondition
from tests.cni.fake_plugins import FakePlugins

ADDRESS = {"cniVersion": "1.0.0", "ips": [{"address": "10.1.0.2/24"}]}


def call_of(binary: Path, *, verb: Verb = "ADD") -> Call:
    return Call(
        binary=binary,
        verb=verb,
        container_id="c0ffee",
        netns="/run/netns/cri-c0ffee",
        ifname="eth0",
        args=[("IgnoreUnknown", "1"), ("K8S_POD_NAME", "web")],
        bin_dirs=[binary.parent, Path("/opt/cni/bin")],
    )


def add(binary: Path) -> dict[str, object]:
    return run_add(call_of(binary), config={"name": "net"}, timeout=30)


def failure(binary: Path) -> PluginError:
    with pytest.raises(PluginError) as raised:
        add(binary)
    return raised.value


def test_a_plugin_gets_environment_and_configuration(fakes: FakePlugins) -> None:
    binary = fakes.write_answering("bridge", ADDRESS)

    assert add(binary) == ADDRESS

    (call,) = fakes.calls
    assert call.config == {"name": "net"}
    assert {key: value for key, value in call.environment.items() if key.startswith("CNI_")} == {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "c0ffee",
        "CNI_NETNS": "/run/netns/cri-c0ffee",
        "CNI_IFNAME": "eth0",
        "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web",
        "CNI_PATH": f"{fakes.bin_dir}:/opt/cni/bin",
    }
    assert call.environment["PATH"], "plugins run iptables"


def test_the_output_of_del_is_ignored(fakes: FakePlugins) -> None:
    binary = fakes.write("bridge", "echo deleted, more or less")

    assert run_plugin(call_of(binary, verb="DEL"), config={}, timeout=30) == b"deleted, more or less\n"


def test_an_error_has_code_message_and_details_of_the_error_object(fakes: FakePlugins) -> None:
    reported = {"cniVersion": "1.0.0", "code": 11, "msg": "no addresses left", "details": "range 10.1.0.0/24"}
    binary = fakes.write_answering("bridge", reported, code=1)

    error = failure(binary)

    assert (error.plugin, error.verb) == ("bridge", "ADD")
    assert (error.code, error.msg, error.details) == (11, "no addresses left", "range 10.1.0.0/24")
    assert str(error) == (
        f"cni ADD by plugin {binary} for sandbox c0ffee: no addresses left (code 11): range 10.1.0.0/24"
    )


def test_1000_characters_of_each_text_are_kept(fakes: FakePlugins) -> None:
    answer = json.dumps({"code": 7, "msg": "m" * 3000, "details": "d" * 3000})
    binary = fakes.write("bridge", f"printf %03000d 0 >&2; echo '{answer}'; exit 1")

    text = str(failure(binary))

    assert text.endswith(f": {'m' * 1000} (code 7): {'d' * 1000}; stderr: {'0' * 1000}")


def test_the_error_has_the_last_lines_of_stderr(fakes: FakePlugins) -> None:
    binary = fakes.write(
        "bridge", """printf 'one\\ntwo\\nthree\\nfour\\n' >&2; echo '{"code": 7, "msg": "bad"}'; exit 1"""
    )

    assert str(failure(binary)).endswith(": bad (code 7); stderr: two | three | four")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("exit 1", "exited with code 1 and printed no error"),
        ("kill -9 $$", "was killed by signal 9 and printed no error"),
        ("echo oops; exit 2", r"exited with code 2 and printed no CNI error: 'oops\n'"),
        ("echo '[1]'; exit 2", r"exited with code 2 and printed no CNI error: '[1]\n'"),
        ("echo '{\"ips\": []}'; exit 1", r"""exited with code 1 and printed no CNI error: '{"ips": []}\n'"""),
        ("echo 'not json'", r"printed no JSON: 'not json\n'"),
        ("printf '\\377\\000'", r"printed no JSON: '\ufffd\x00'"),
        ("", "printed no JSON: ''"),
        ("echo '[]'", r"printed no result object: '[]\n'"),
        ("head -c 10485760 /dev/zero", "printed more than 1048576 bytes, killed"),
    ],
    ids=[
        "exits-without-error",
        "dies",
        "exits-with-garbage",
        "exits-with-another-shape",
        "exits-with-a-result",
        "garbage",
        "binary-garbage",
        "nothing",
        "a-list",
        "10-MB",
    ],
)
def test_an_answer_that_is_not_cni_is_an_error_that_names_the_binary(fakes: FakePlugins, body: str, words: str) -> None:
    binary = fakes.write("bridge", body)

    assert str(failure(binary)) == f"cni ADD by plugin {binary} for sandbox c0ffee: {words}"


def test_a_limited_part_of_garbage_is_quoted(fakes: FakePlugins) -> None:
    binary = fakes.write("bridge", "head -c 5000 /dev/zero | tr '\\0' x")

    assert str(failure(binary)).endswith(f"printed no JSON: '{'x' * 200}'...")


def test_a_long_error_stays_short_enough_for_a_status(fakes: FakePlugins) -> None:
    binary = fakes.write_answering("bridge", {"code": 1, "msg": "m" * 9000, "details": "d" * 9000}, code=1)

    error = failure(binary)

    assert len(str(error)) < 2500
    assert error.msg == "m" * 9000


def test_a_hung_plugin_is_killed_after_its_timeout(fakes: FakePlugins) -> None:
    binary = fakes.write("bridge", "sleep 60")

    with pytest.raises(DeadlineExceeded, match=rf"^cni ADD by plugin {binary} for sandbox c0ffee: not finished within"):
        run_add(call_of(binary), config={}, timeout=0.3)


def test_a_plugin_that_cannot_be_started_is_an_error(fakes: FakePlugins) -> None:
    binary = fakes.write_program("bridge", "#!/no/such/interpreter\n")

    with pytest.raises(FailedPrecondition, match=rf"plugin {binary} .*: cannot be started: no such file"):
        add(binary)


def test_deeply_nested_json_is_an_error(fakes: FakePlugins) -> None:
    binary = fakes.write_answering("bridge", b"[" * 200_000)

    assert failure(binary).msg.startswith("printed no JSON: '[[[[")


def test_a_plugin_is_the_first_executable_of_its_name(tmp_path: Path) -> None:
    dirs = [tmp_path / name for name in ("absent", "directory", "plain", "good", "later")]
    (dirs[1] / "bridge").mkdir(parents=True)
    for directory, mode in zip(dirs[2:], (0o644, 0o755, 0o755), strict=True):
        directory.mkdir()
        (directory / "bridge").write_text("")
        (directory / "bridge").chmod(mode)

    assert find_plugins(["bridge"], dirs) == {"bridge": tmp_path / "good/bridge"}
    assert find_plugins(["bridge"], dirs[:3]) == {}


def test_a_plugin_whose_name_is_too_long_is_missing(tmp_path: Path) -> None:
    assert find_plugins(["a" * 300], [tmp_path]) == {}


def test_the_configuration_reaches_the_plugin_unchanged(fakes: FakePlugins) -> None:
    binary = fakes.write("bridge")
    config = {"name": "nët", "mtu": 1450, "ratio": 0.5, "nested": {"deep": [None, True, {}]}}

    run_plugin(call_of(binary, verb="DEL"), config=json.loads(json.dumps(config)), timeout=30)

    assert fakes.calls[0].config == config


def test_each_run_is_reported_with_its_result(fakes: FakePlugins) -> None:
    heard: list[Measurement] = []
    with subscribed(heard.append):
        add(fakes.write_answering("bridge", ADDRESS))
        failure(fakes.write("portmap", "exit 3"))

    assert [done.kind for done in heard] == [Kind.CNI, Kind.CNI]
    assert [done.labels for done in heard] == [("bridge", "ADD", "ok"), ("portmap", "ADD", "PluginError")]
