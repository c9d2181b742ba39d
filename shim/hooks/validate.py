"""Whether what plugins have made of a new container is allowed, by the built-in validator and by validating plugins."""

from shim.api.nri import nri_pb2 as nri
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition
from shim.nri import plugin as events
from shim.nri import validator
from shim.nri.merge import Adjustments
from shim.nri.validator import Rules
from shim.runtime import Runtime


def rules_of(config: Config) -> Rules | None:
    """Return the rules of the built-in validator; None where it is off."""
    if not config.nri_default_validator:
        return None
    return Rules(
        reject_oci_hook_adjustment=config.nri_reject_oci_hook_adjustment,
        reject_runtime_default_seccomp_adjustment=config.nri_reject_runtime_default_seccomp_adjustment,
        reject_unconfined_seccomp_adjustment=config.nri_reject_unconfined_seccomp_adjustment,
        reject_custom_seccomp_adjustment=config.nri_reject_custom_seccomp_adjustment,
        reject_namespace_adjustment=config.nri_reject_namespace_adjustment,
        reject_sysctl_adjustment=config.nri_reject_sysctl_adjustment,
        required_plugins=config.nri_required_plugins,
        tolerate_missing_plugins_annotation=config.nri_tolerate_missing_plugins_annotation,
    )


def validate(rt: Runtime, adjustments: Adjustments) -> None:
    """Raise FailedPrecondition with the reason why it is not allowed. Within a turn."""
    pod, container, plugins = adjustments.request.pod, adjustments.asked, rt.nri.names
    rules = rules_of(rt.config)
    if rules is not None:
        validator.validate(
            rules,
            pod=pod,
            container=container,
            owners=adjustments.owners,
            plugins={plugin.name for plugin in plugins},
        )
    validators = rt.nri.wanting(events.VALIDATE)
    if not validators:
        return
    request = nri.ValidateContainerAdjustmentRequest(
        pod=pod,
        container=container,
        adjust=adjustments.adjust,
        update=adjustments.updates.by_container.values(),
        owners=adjustments.owners.message,
        plugins=plugins,
    )
    for plugin, answer in rt.nri.tell(events.VALIDATE, request):
        validators.remove(plugin)
        assert isinstance(answer, nri.ValidateContainerAdjustmentResponse)  # noqa: S101 - for the type checker
        if answer.reject:
            reason = answer.reason[:1000] or "no reason given"
            raise FailedPrecondition(f"NRI plugin {plugin} refuses what plugins made of the container: {reason}")
    if validators:
        raise FailedPrecondition(f"NRI plugin {validators[0]} has not answered whether the container is allowed")
