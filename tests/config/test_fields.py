from pathlib import Path
from typing import Any

import msgspec
import pytest

from shim.config.fields import Field, fields
from shim.config.forms import seconds_from
from shim.config.model import Config


def parsed(name: str, raw: object) -> Any:
    return fields()[name].parse(raw)


def refused(name: str, raw: object) -> bool:
    try:
        parsed(name, raw)
    except ValueError:
        return True
    return False


def test_every_field_of_the_model_has_its_documentation() -> None:
    assert list(fields()) == list(Config.__struct_fields__)
    assert all(field.doc.endswith((".", ")")) for field in fields().values())


def test_field_has_a_flag_and_a_variable() -> None:
    field = fields()["cni_bin_dir"]

    assert (field.flag, field.variable) == ("--cni-bin-dir", "PYDOCKERSHIM_CNI_BIN_DIR")


@pytest.mark.parametrize("name", list(Config.__struct_fields__))
def test_every_default_is_an_accepted_value(name: str) -> None:
    default = getattr(Config(), name)
    raw = [str(path) for path in default] if isinstance(default, tuple) else msgspec.to_builtins(default, enc_hook=str)

    assert parsed(name, raw) == default


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("60", 60.0),
        ("0.5", 0.5),
        (90, 90.0),
        (1.5, 1.5),
        ("0", 0.0),
        ("1m30s", 90.0),
        ("2m0s", 120.0),
        ("1h", 3600.0),
        ("250ms", 0.25),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("5ns", 5e-9),
    ],
)
def test_durations_are_parsed(raw: object, seconds: float) -> None:
    assert seconds_from(raw) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("raw", "endpoint"),
    [
        ("", ""),
        ("localhost:4317", "http://localhost:4317"),
        ("http://127.0.0.1:4317", "http://127.0.0.1:4317"),
        ("https://otel.example:443", "https://otel.example:443"),
        ("[::1]:4317", "http://[::1]:4317"),
    ],
)
def test_trace_collectors_are_parsed(raw: str, endpoint: str) -> None:
    assert parsed("tracing_endpoint", raw) == endpoint


@pytest.mark.parametrize("raw", ["localhost", "http://localhost", "ftp://a:1", "a:0", "a:65536", "http://a:1/v1", 4317])
def test_invalid_collector_is_refused(raw: object) -> None:
    assert refused("tracing_endpoint", raw)


@pytest.mark.parametrize("raw", [-1, "1000001", True, "some", 0.5])
def test_invalid_rate_is_refused(raw: object) -> None:
    assert refused("tracing_sampling_rate_per_million", raw)


@pytest.mark.parametrize("raw", ["", "soon", "-1", "-1s", "1m30", "1x", "inf", "nan", " 1", "1 m", True, None, [1], -2])
def test_invalid_duration_is_refused(raw: object) -> None:
    assert refused("shutdown_grace", raw)


@pytest.mark.parametrize("name", [name for name in fields() if isinstance(getattr(Config(), name), float)])
@pytest.mark.parametrize("raw", ["278h", "1e7", "1e308", 10**9])
def test_too_long_duration_is_refused(name: str, raw: object) -> None:
    assert refused(name, raw)
    assert parsed(name, "277h") == 277 * 3600


@pytest.mark.parametrize(
    ("raw", "endpoint"),
    [
        ("unix:///run/a.sock", "unix:///run/a.sock"),
        ("/run/a.sock", "unix:///run/a.sock"),
        ("fd://", "fd://"),
    ],
)
def test_endpoints_may_omit_the_scheme(raw: str, endpoint: str) -> None:
    assert parsed("container_runtime_endpoint", raw) == endpoint


@pytest.mark.parametrize(
    "raw", ["", "tcp://1.2.3.4:5", "unix://run/a.sock", "a.sock", "fd://3", "npipe:////./pipe/x", 1]
)
def test_invalid_endpoint_is_refused(raw: object) -> None:
    assert refused("container_runtime_endpoint", raw)


def test_docker_endpoint_must_be_a_unix_socket() -> None:
    assert parsed("docker_endpoint", "/run/docker.sock") == "unix:///run/docker.sock"
    assert refused("docker_endpoint", "fd://")


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("docker_endpoint", "", "unix:///var/run/docker.sock"),
        ("runtime_request_timeout", "0", 120.0),
        ("runtime_request_timeout", "0s", 120.0),
        ("runtime_request_timeout", 0, 120.0),
        ("runtime_request_timeout", "2m", 120.0),
        ("runtime_request_timeout", "0.5", 0.5),
    ],
)
def test_cri_dockerds_default_values_mean_the_default(name: str, raw: object, value: object) -> None:
    assert parsed(name, raw) == value


@pytest.mark.parametrize("name", ["cni_plugin_timeout", "streaming_creation_timeout"])
def test_limit_that_must_not_be_zero(name: str) -> None:
    assert [parsed(name, raw) for raw in ("1", "1m", 2)] == [1, 60, 2]
    assert all(refused(name, raw) for raw in ("0", 0, "0s", "0.5", "500ms", -1))


@pytest.mark.parametrize(
    "name", ["image_pull_progress_deadline", "runtime_request_timeout", "streaming_idle_timeout", "shutdown_grace"]
)
def test_limit_that_may_be_zero(name: str) -> None:
    assert parsed(name, "0") in {0, getattr(Config(), name)}
    assert parsed(name, "0.5") == 0.5
    assert refused(name, "0.000001") == (name != "shutdown_grace")


@pytest.mark.parametrize("field", fields().values(), ids=list(fields()))
def test_meaning_of_zero_is_documented_for_every_number(field: Field) -> None:
    is_number = isinstance(field.default, int | float) and not isinstance(field.default, bool)

    assert bool(field.zero) == is_number
    assert (field.zero == "refused") == (is_number and refused(field.name, 0))
    assert (field.zero == "the default") == (is_number and not refused(field.name, 0) and parsed(field.name, 0) != 0)


@pytest.mark.parametrize("raw", ["/", "//", "/.", "/var/lib/../..", "/a/..", "state", ""])
def test_unsafe_private_directory_is_refused(raw: str) -> None:
    assert refused("root_directory", raw)


@pytest.mark.parametrize("raw", ["/opt/cni/bin,/usr/lib/cni", ["/opt/cni/bin", "/usr/lib/cni"]])
def test_directory_list_is_parsed(raw: object) -> None:
    assert parsed("cni_bin_dir", raw) == (Path("/opt/cni/bin"), Path("/usr/lib/cni"))


@pytest.mark.parametrize("raw", ["", "/a,", "/a,b", [], [1], 7])
def test_invalid_directory_list_is_refused(raw: object) -> None:
    assert refused("cni_bin_dir", raw)


@pytest.mark.parametrize(
    ("raw", "level"),
    [
        ("info", "info"),
        ("INFO", "info"),
        ("Warn", "warning"),
        ("warning", "warning"),
        ("trace", "debug"),
        ("fatal", "error"),
        ("Panic", "error"),
        ("", "info"),
    ],
)
def test_log_levels_of_cri_dockerd_are_understood(raw: str, level: str) -> None:
    assert parsed("log_level", raw) == level


@pytest.mark.parametrize("raw", ["loud", " info", "warnin", None, 1, ["info"]])
def test_invalid_log_level_is_refused(raw: object) -> None:
    assert refused("log_level", raw)


@pytest.mark.parametrize(("raw", "value"), [("auto", "auto"), (True, "true"), (False, "false"), ("true", "true")])
def test_a_choice_takes_a_boolean_of_toml_too(raw: object, value: str) -> None:
    assert parsed("restrict_oom_score_adj", raw) == value


@pytest.mark.parametrize(("raw", "value"), [(True, True), (False, False), ("true", True), ("false", False)])
def test_a_switch_takes_a_boolean_of_toml_and_the_text_of_a_flag(raw: object, value: object) -> None:
    assert parsed("streaming_allow_plain_remote", raw) is value


@pytest.mark.parametrize("raw", ["True", "yes", "", 1, None, []])
def test_invalid_switch_is_refused(raw: object) -> None:
    assert refused("streaming_allow_plain_remote", raw)


@pytest.mark.parametrize("raw", ["maybe", "", None, 1])
def test_invalid_choice_is_refused(raw: object) -> None:
    assert refused("restrict_oom_score_adj", raw)


def test_choices_are_listed_in_words() -> None:
    assert fields()["log_format"].accepted == "auto, console or json"


def test_pod_ranges_are_parsed() -> None:
    assert parsed("pod_cidr", "10.244.0.0/24, fd00::/64") == "10.244.0.0/24,fd00::/64"
    assert parsed("pod_cidr", "10.244.0.1/24") == "10.244.0.0/24"
    assert parsed("pod_cidr", "") == ""


@pytest.mark.parametrize("raw", ["10.244.0.0/33", "pods", "10.0.0.0/8;10.1.0.0/16", 10])
def test_invalid_pod_range_is_refused(raw: object) -> None:
    assert refused("pod_cidr", raw)


@pytest.mark.parametrize(
    ("raw", "address"),
    [
        ("", "127.0.0.1:0"),
        ("192.0.2.1", "192.0.2.1:0"),
        ("192.0.2.1:80", "192.0.2.1:80"),
        ("::1", "[::1]:0"),
        ("[::1]", "[::1]:0"),
        ("[::]:10010", "[::]:10010"),
    ],
)
def test_streaming_addresses_are_parsed(raw: str, address: str) -> None:
    assert parsed("streaming_bind_addr", raw) == address


@pytest.mark.parametrize(
    "raw", ["localhost", "localhost:80", ":80", "1.2.3.4:65536", "1.2.3.4:", "1.2.3:80", "[::1", 80]
)
def test_invalid_streaming_address_is_refused(raw: object) -> None:
    assert refused("streaming_bind_addr", raw)


def test_optional_file_may_be_empty() -> None:
    assert parsed("streaming_tls_key_file", "") == ""
    assert parsed("streaming_tls_key_file", "/k.pem") == "/k.pem"
    assert refused("streaming_tls_key_file", "k.pem")


@pytest.mark.parametrize("raw", ["registry.k8s.io/pause:3.10", "pause", "r.example:5000/a@sha256:" + "ab" * 32])
def test_the_pause_image_is_a_reference(raw: str) -> None:
    assert parsed("pod_infra_container_image", raw) == raw


@pytest.mark.parametrize("raw", ["", "R.example/Pause", "pause:", "pause 3", "pause@sha256:12", "https://r.example", 1])
def test_invalid_reference_is_refused(raw: object) -> None:
    assert refused("pod_infra_container_image", raw)


@pytest.mark.parametrize(
    ("raw", "patterns"),
    [("", ()), ([], ()), ("a/*,b:1", ("a/*", "b:1")), (["[::1]:5000/a", "*"], ("[::1]:5000/a", "*"))],
)
def test_image_patterns_are_parsed(raw: object, patterns: tuple[str, ...]) -> None:
    assert parsed("pinned_images", raw) == patterns


@pytest.mark.parametrize("raw", ["a,", ",", "a b", "a?", ["a,b"], [""], 1, None])
def test_invalid_image_pattern_is_refused(raw: object) -> None:
    assert refused("pinned_images", raw)


@pytest.mark.parametrize("name", ["pod_annotations", "container_annotations"])
def test_annotation_patterns_are_parsed(name: str) -> None:
    assert parsed(name, "") == ()
    assert parsed(name, "dev.gvisor.*,run.oci/x") == parsed(name, ["dev.gvisor.*", "run.oci/x"])
    for raw in ("a b", "a?", ["a,b"], [""], 1):
        assert refused(name, raw)


@pytest.mark.parametrize("name", ["image_credential_provider_config", "image_credential_provider_bin_dir"])
def test_optional_path_may_be_empty(name: str) -> None:
    assert parsed(name, "") == ""
    assert parsed(name, "/etc/a.yaml") == "/etc/a.yaml"
    assert refused(name, "a.yaml")


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("", ""),
        ("9180", "127.0.0.1:9180"),
        (9180, "127.0.0.1:9180"),
        (":9180", "127.0.0.1:9180"),
        ("0.0.0.0:9180", "0.0.0.0:9180"),
        ("[::1]:9180", "[::1]:9180"),
    ],
)
def test_metrics_are_on_loopback_by_default(raw: object, expected: str) -> None:
    assert parsed("metrics_bind_addr", raw) == expected


@pytest.mark.parametrize("raw", ["0", "70000", "example.com:80", "127.0.0.1", "127.0.0.1:", "[::1", ":x", True, -1])
def test_invalid_metrics_address_is_refused(raw: object) -> None:
    assert refused("metrics_bind_addr", raw)


@pytest.mark.parametrize("raw", ["512k", "16m", "1g"])
def test_sizes_keep_dockers_form(raw: str) -> None:
    assert parsed("docker_log_max_size", raw) == raw


@pytest.mark.parametrize("raw", ["16", "0m", "16M", "m", "-1m", "1.5m", "16mb", 16, ""])
def test_invalid_size_is_refused(raw: object) -> None:
    assert refused("docker_log_max_size", raw)


def test_docker_keeps_at_least_two_files() -> None:
    assert [parsed("docker_log_max_file", raw) for raw in (2, "5", 100)] == [2, 5, 100]
    assert all(refused("docker_log_max_file", raw) for raw in (1, "0", 101, "many", True, 2.5, None))


@pytest.mark.parametrize("name", ["streaming_max_sessions", "streaming_max_sessions_per_container"])
def test_number_of_sessions_is_bounded(name: str) -> None:
    assert [parsed(name, raw) for raw in (1, "64", 10000)] == [1, 64, 10000]
    assert all(refused(name, raw) for raw in (0, "0", -1, 10001, "many", True, 2.5, None))


@pytest.mark.parametrize(("raw", "plugin"), [("cni", "cni"), ("none", "none"), ("", "none"), ("no-op", "none")])
def test_network_plugin_accepts_cri_dockerds_values(raw: str, plugin: str) -> None:
    assert parsed("network_plugin", raw) == plugin
    assert refused("network_plugin", "kubenet")
