"""NRI's default validator, which is built in: rejects changes that the administrator forbids."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shim.api.nri import nri_pb2 as nri
from shim.domain.errors import FailedPrecondition
from shim.nri.owners import Field, Owners

REQUIRED_ANNOTATION = "required-plugins.noderesource.dev"
"""An annotation with a YAML list of plugins. Unless all are registered, the pod's containers are not created."""

_SECCOMP = {
    nri.SecurityProfile.RUNTIME_DEFAULT: "runtime default",
    nri.SecurityProfile.UNCONFINED: "unconfined",
    nri.SecurityProfile.LOCALHOST: "custom",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The forbidden changes, named as in containerd's configuration."""

    reject_oci_hook_adjustment: bool = False
    reject_runtime_default_seccomp_adjustment: bool = False
    reject_unconfined_seccomp_adjustment: bool = False
    reject_custom_seccomp_adjustment: bool = False
    reject_namespace_adjustment: bool = False
    reject_sysctl_adjustment: bool = False
    required_plugins: tuple[str, ...] = ()
    tolerate_missing_plugins_annotation: str = ""
    """An annotation of pods that tolerates missing required plugins; empty for none."""


def validate(
    rules: Rules,
    *,
    pod: nri.PodSandbox,
    container: nri.Container,
    owners: Owners,
    plugins: Collection[str],
) -> None:
    """Check the plugins' changes of a container. Raise FailedPrecondition with the forbidden change and its plugins.

    `container` is the container before all changes; `plugins` are the names of the registered plugins.
    """
    for is_refused, field, what in (
        (rules.reject_oci_hook_adjustment, Field.OciHooks, "OCI hooks"),
        (rules.reject_namespace_adjustment, Field.Namespace, "namespaces"),
        (rules.reject_sysctl_adjustment, Field.Sysctl, "sysctls"),
        (_refuses_seccomp(rules, container), Field.SeccompPolicy, f"the {_seccomp_kind(container)} seccomp policy"),
    ):
        found = owners.of(container.id, field)
        if is_refused and found:
            raise FailedPrecondition(f"the validator lets no plugin change {what}: {_named(found.values())} did")
    _check_required(rules, pod=pod, container=container.name, plugins=plugins)


def _kind(container: nri.Container) -> "nri.SecurityProfile.ProfileType":
    if not container.linux.HasField("seccomp_profile"):
        return nri.SecurityProfile.UNCONFINED
    return container.linux.seccomp_profile.profile_type


def _seccomp_kind(container: nri.Container) -> str:
    return _SECCOMP[_kind(container)]


def _refuses_seccomp(rules: Rules, container: nri.Container) -> bool:
    return {
        nri.SecurityProfile.RUNTIME_DEFAULT: rules.reject_runtime_default_seccomp_adjustment,
        nri.SecurityProfile.UNCONFINED: rules.reject_unconfined_seccomp_adjustment,
        nri.SecurityProfile.LOCALHOST: rules.reject_custom_seccomp_adjustment,
    }[_kind(container)]


def _named(plugins: Iterable[str]) -> str:
    return ", ".join(sorted({f'"{name}"' for several in plugins for name in several.split(",")}))


def _check_required(rules: Rules, *, pod: nri.PodSandbox, container: str, plugins: Collection[str]) -> None:
    tolerated = _annotation(pod, rules.tolerate_missing_plugins_annotation, container)
    if tolerated in {"1", "t", "T", "true", "TRUE", "True"}:
        return
    required = [*rules.required_plugins, *names_in(_annotation(pod, REQUIRED_ANNOTATION, container))]
    missing = [name for name in required if name not in plugins]
    if missing:
        raise FailedPrecondition(f"the validator requires plugins that are not registered: {_named(missing)}")


def _annotation(pod: nri.PodSandbox, key: str, container: str) -> str:
    """Return the value of an annotation for a container: its own, the pod's, or the unscoped value."""
    if not key:
        return ""
    names = (f"{key}/container.{container}", f"{key}/pod", key)
    return next((pod.annotations[name] for name in names if name in pod.annotations), "")


def names_in(text: str) -> list[str]:
    """Return the names in a YAML list: `[a, b]`, or a line `- a` for each name. Raise FailedPrecondition."""
    plain = text.strip()
    if not plain:
        return []
    if plain.startswith("[") and plain.endswith("]"):
        parts = plain[1:-1].split(",")
    elif plain.startswith("-"):
        parts = [line.removeprefix("- ") if line.startswith("- ") else "\0" for line in plain.split("\n")]
    else:
        parts = ["\0"]
    names = [part.strip().strip("\"'") for part in parts]
    if any(not name.isprintable() for name in names):
        raise FailedPrecondition(f"the annotation {REQUIRED_ANNOTATION} is not a list of names: {plain[:64]!r}")
    return [name for name in names if name]
