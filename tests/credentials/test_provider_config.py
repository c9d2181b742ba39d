"""The kubelet's CredentialProviderConfig: accepted content, and the field in the error otherwise."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from shim.credentials.provider_config import FILE_LIMIT, ProviderSettings, read_providers
from shim.domain.errors import FailedPrecondition, InvalidArgument
from tests.credentials.programs import Programs

GOOD: dict[str, Any] = {
    "apiVersion": "kubelet.config.k8s.io/v1",
    "kind": "CredentialProviderConfig",
    "providers": [
        {
            "name": "ecr",
            "matchImages": ["*.dkr.ecr.*.amazonaws.com", "r.example:5000/team"],
            "defaultCacheDuration": "1h30m",
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
            "args": ["get-credentials", "-v"],
            "env": [{"name": "AWS_PROFILE", "value": "s3cret"}],
        }
    ],
}


@pytest.fixture(autouse=True)
def plugin(programs: Programs) -> Path:
    return programs.write("ecr", "")


def read(programs: Programs, content: object) -> tuple[ProviderSettings, ...]:
    file = programs.bin_dir.parent / "providers.yaml"
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return read_providers(file, bin_dir=programs.bin_dir)


def changed(path: str, value: object) -> dict[str, Any]:
    """Return GOOD with another value at a path such as `providers.0.name`; None removes the field."""
    made = copy.deepcopy(GOOD)
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at: Any = made
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return made


@pytest.mark.parametrize(
    "form", [yaml.safe_dump, json.dumps, partial(json.dumps, indent="\t")], ids=["YAML", "JSON", "tabs"]
)
def test_file_is_read(programs: Programs, form: Any) -> None:
    assert read(programs, form(GOOD)) == (
        ProviderSettings(
            name="ecr",
            binary=programs.bin_dir / "ecr",
            match_images=("*.dkr.ecr.*.amazonaws.com", "r.example:5000/team"),
            api_version="credentialprovider.kubelet.k8s.io/v1",
            default_cache_seconds=5400.0,
            arguments=("get-credentials", "-v"),
            environment={"AWS_PROFILE": "s3cret"},
        ),
    )


def test_repr_shows_no_environment(programs: Programs) -> None:
    assert "s3cret" not in repr(read(programs, GOOD))


@pytest.mark.parametrize("version", ["v1alpha1", "v1beta1", "v1"])
def test_all_versions_are_accepted(programs: Programs, version: str) -> None:
    config = changed("apiVersion", f"kubelet.config.k8s.io/{version}")
    config["providers"][0]["apiVersion"] = f"credentialprovider.kubelet.k8s.io/{version}"
    assert read(programs, config)[0].api_version == f"credentialprovider.kubelet.k8s.io/{version}"


@pytest.mark.parametrize("needs", [True, False])
def test_service_account_requirement_is_read(programs: Programs, *, needs: bool) -> None:
    tokens = {"serviceAccountTokenAudience": "a", "requireServiceAccount": needs, "cacheType": "Token"}
    assert read(programs, changed("providers.0.tokenAttributes", tokens))[0].needs_service_account is needs


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("apiVersion", "kubelet.config.k8s.io/v2", "apiVersion 'kubelet.config.k8s.io/v2' is not kubelet"),
        ("apiVersion", None, "missing required field `apiVersion`"),
        ("kind", "KubeletConfiguration", "kind 'KubeletConfiguration' is not CredentialProviderConfig"),
        ("providers", [], "providers is empty"),
        ("providers", "ecr", r"Expected `array`, got `str` - at `\$.providers`"),
        ("extra", 1, "unknown field `extra`"),
        ("providers.0.name", None, "provider 0: .*missing required field `name`"),
        ("providers.0.name", "", "provider 0: name '' is not a file name"),
        ("providers.0.name", "a/b", "provider a/b: name 'a/b' is not a file name"),
        ("providers.0.name", "..", "name '..' is not a file name"),
        ("providers.0.matchImages", None, "provider ecr: .*missing required field `matchImages`"),
        ("providers.0.matchImages", [], "provider ecr: matchImages is empty"),
        ("providers.0.matchImages", ["https://r.example"], "provider ecr: matchImages: 'https://r.example' is no"),
        ("providers.0.matchImages", [""], "provider ecr: matchImages: '' is no"),
        ("providers.0.matchImages", ["a b"], "provider ecr: matchImages: 'a b' is no"),
        ("providers.0.defaultCacheDuration", None, "provider ecr: .*missing required field `defaultCacheDuration`"),
        ("providers.0.defaultCacheDuration", "soon", "provider ecr: defaultCacheDuration 'soon' is not a duration"),
        ("providers.0.defaultCacheDuration", "-1s", "provider ecr: defaultCacheDuration '-1s' is not a duration"),
        ("providers.0.apiVersion", "v1", "provider ecr: apiVersion 'v1' is not credentialprovider"),
        ("providers.0.args", "x", r"provider ecr: Expected `array \| null`, got `str` - at `\$.args`"),
        ("providers.0.env", [{"name": "A", "value": 5}], r"provider ecr: .* - at `\$.env\[0\].value`"),
        (
            "providers.0.env",
            [{"name": "A=B", "value": "s3cret"}],
            "provider ecr: env: 'A=B' is not a valid environment",
        ),
        ("providers.0.matchImage", ["x"], "provider ecr: .*unknown field `matchImage`"),
        ("providers.0.tokenAttributes", {"x": 1}, r"provider ecr: .*tokenAttributes"),
    ],
)
def test_invalid_field_is_reported(programs: Programs, path: str, value: object, words: str) -> None:
    where = rf"^image_credential_provider_config \S+/providers.yaml: .*{words}"
    with pytest.raises(InvalidArgument, match=where) as caught:
        read(programs, changed(path, value))
    assert "s3cret" not in str(caught.value)


def test_dates_and_times_are_strings(programs: Programs) -> None:
    text = yaml.safe_dump(GOOD).replace("- -v", "- 2022-01-01\n  - 1:30").replace("s3cret", "12:30:45.5")

    [settings] = read(programs, text)

    assert settings.arguments == ("get-credentials", "2022-01-01", "1:30")
    assert settings.environment == {"AWS_PROFILE": "12:30:45.5"}


@pytest.mark.parametrize(
    "text",
    ["a: [s3cret", "\ta: s3cret", "{s3cret", "!!int s3cret", "? !!int ", "!!bool s3cret", "!!timestamp s3cret"],
    ids=["open", "tab", "brace", "int", "empty int", "bool", "timestamp"],
)
def test_invalid_yaml_is_refused(programs: Programs, text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not YAML") as caught:
        read(programs, text)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_empty_file_is_refused(programs: Programs) -> None:
    with pytest.raises(InvalidArgument, match="Expected `object`, got `null`"):
        read(programs, "")


def test_missing_file_is_refused(programs: Programs) -> None:
    with pytest.raises(FailedPrecondition, match=r"/none\.yaml: cannot be read: no such file"):
        read_providers(programs.bin_dir / "none.yaml", bin_dir=programs.bin_dir)


def test_non_executable_plugin_is_refused(programs: Programs, plugin: Path) -> None:
    plugin.chmod(0o644)
    with pytest.raises(FailedPrecondition, match=r"provider ecr: name: .*/ecr is not an executable file"):
        read(programs, GOOD)


def test_missing_plugin_is_refused(programs: Programs, plugin: Path) -> None:
    plugin.unlink()
    with pytest.raises(FailedPrecondition, match=r"provider ecr: name: .*/ecr is not an executable file"):
        read(programs, GOOD)


def test_missing_plugin_directory_is_refused(programs: Programs, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=r"image_credential_provider_bin_dir .*/none is not a directory"):
        read_providers(tmp_path / "providers.yaml", bin_dir=tmp_path / "none")


def test_duplicate_name_is_refused(programs: Programs) -> None:
    with pytest.raises(InvalidArgument, match="provider ecr: name 'ecr' is taken by an earlier provider"):
        read(programs, changed("providers", GOOD["providers"] * 2))


def test_all_files_of_a_directory_are_read(programs: Programs, tmp_path: Path) -> None:
    directory = tmp_path / "providers"
    directory.mkdir()
    with pytest.raises(FailedPrecondition, match=r"no \.json, \.yaml or \.yml file in it"):
        read_providers(directory, bin_dir=programs.bin_dir)
    for name in ("b", "a", "c"):
        programs.write(name, "")
        file = directory / f"{name}.{'json' if name == 'b' else 'yaml'}"
        file.write_text(json.dumps(changed("providers.0.name", name)))
    (directory / "README").write_text("not a provider")
    assert [settings.name for settings in read_providers(directory, bin_dir=programs.bin_dir)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "words"),
    [("[" * 5000, "is not YAML"), (" " * (FILE_LIMIT + 1), f"more than {FILE_LIMIT} bytes")],
    ids=["nested", "too large"],
)
def test_deeply_nested_or_large_file_is_refused(programs: Programs, content: str, words: str) -> None:
    with pytest.raises((InvalidArgument, FailedPrecondition), match=words):
        read(programs, content)
