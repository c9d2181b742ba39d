from typing import Any

import pytest

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition
from shim.nri.owners import Field, Owners
from shim.nri.validator import REQUIRED_ANNOTATION, Rules, names_in, validate

Profile = nri.SecurityProfile


def with_rule(name: str) -> Rules:
    fields: dict[str, Any] = {name: True}
    return Rules(**fields)


def check(
    rules: Rules, *, changed: Field | None = None, annotations: dict[str, str] | None = None, **linux: Any
) -> None:
    owners = Owners()
    if changed is not None:
        owners.claim("c", changed, "10-bad", key="key" if changed in {Field.Namespace, Field.Sysctl} else "")
    container = nri.Container(id="c", name="app", linux=nri.LinuxContainer(**linux))
    pod = nri.PodSandbox(annotations=annotations or {})
    validate(rules, pod=pod, container=container, owners=owners, plugins={"logger"})


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ("reject_oci_hook_adjustment", Field.OciHooks),
        ("reject_namespace_adjustment", Field.Namespace),
        ("reject_sysctl_adjustment", Field.Sysctl),
    ],
)
def test_a_forbidden_change_is_refused_and_names_its_plugin(rule: str, field: Field) -> None:
    with pytest.raises(FailedPrecondition, match='"10-bad" did'):
        check(with_rule(rule), changed=field)
    check(with_rule(rule))
    check(Rules(), changed=field)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        ("reject_runtime_default_seccomp_adjustment", Profile.RUNTIME_DEFAULT),
        ("reject_unconfined_seccomp_adjustment", Profile.UNCONFINED),
        ("reject_custom_seccomp_adjustment", Profile.LOCALHOST),
    ],
)
def test_the_seccomp_rule_depends_on_the_replaced_profile(rule: str, kind: "Profile.ProfileType") -> None:
    kinds: list[Any] = Profile.ProfileType.values()
    for of_container in kinds:
        profile = Profile(profile_type=of_container)
        if of_container == kind:
            with pytest.raises(FailedPrecondition, match="seccomp policy"):
                check(with_rule(rule), changed=Field.SeccompPolicy, seccomp_profile=profile)
        else:
            check(with_rule(rule), changed=Field.SeccompPolicy, seccomp_profile=profile)


def test_a_container_without_a_profile_is_unconfined() -> None:
    with pytest.raises(FailedPrecondition, match="unconfined"):
        check(Rules(reject_unconfined_seccomp_adjustment=True), changed=Field.SeccompPolicy)


def test_required_plugins_must_be_registered() -> None:
    check(Rules(required_plugins=("logger",)))
    with pytest.raises(FailedPrecondition, match=r'plugins that are not registered: "balloons"$'):
        check(Rules(required_plugins=("logger", "balloons")))


@pytest.mark.parametrize(
    "key", [f"{REQUIRED_ANNOTATION}/container.app", f"{REQUIRED_ANNOTATION}/pod", REQUIRED_ANNOTATION]
)
def test_a_pod_can_require_plugins_itself(key: str) -> None:
    check(Rules(), annotations={key: "[logger]"})
    check(Rules(), annotations={f"{REQUIRED_ANNOTATION}/container.other": "[balloons]"})
    with pytest.raises(FailedPrecondition, match="balloons"):
        check(Rules(), annotations={key: "[logger, balloons]"})


def test_an_annotation_tolerates_missing_plugins() -> None:
    rules = Rules(required_plugins=("balloons",), tolerate_missing_plugins_annotation="tolerate.example")
    check(rules, annotations={"tolerate.example": "true"})
    with pytest.raises(FailedPrecondition):
        check(rules, annotations={"tolerate.example": "false"})
    with pytest.raises(FailedPrecondition):
        check(Rules(required_plugins=("balloons",)), annotations={"tolerate.example": "true"})


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("[]", []), ('["a", b]', ["a", "b"]), ("- a\n- 'b'\n", ["a", "b"]), (" [a] ", ["a"])],
)
def test_a_yaml_list_of_names_is_parsed(text: str, names: list[str]) -> None:
    assert names_in(text) == names


@pytest.mark.parametrize("text", ["a", "{a: b}", "- a\nb", "1"])
def test_other_text_than_a_list_is_refused(text: str) -> None:
    with pytest.raises(FailedPrecondition, match="is not a list of names"):
        names_in(text)
