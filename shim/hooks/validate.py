"""Validation of the changes that plugins make to a new container, by the built-in validator and by plugins."""

from shim.api.nri import nri_pb2 as nri
from shim.config.model import Config
from shim.domain.errors import FailedPrecondition
from shim.nri import plugin as events
from shim.nri import validator
from shim.nri.merge import Adjustments
from shim.nri.validator import Rules
from shim.runtime import Runtime


def rules_of(config: Config) -> Rules | None:
    """Return the rules of the built-in validator; None if it is disabled."""
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
    """Raise FailedPrecondition with a reason if a validator rejects the adjusted container. Runs within a turn."""
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
    validators = rt.nri.subscribers(events.VALIDATE)
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
    for plugin, answer in rt.nri.call(events.VALIDATE, request):
        validators.remove(plugin)
        assert isinstance(answer, nri.ValidateContainerAdjustmentResponse)  # noqa: S101 - for the type checker
        if answer.reject:
            reason = answer.reason[:1000] or "no reason given"
            raise FailedPrecondition(f"NRI plugin {plugin} rejects the adjusted container: {reason}")
    if validators:
        raise FailedPrecondition(f"NRI plugin {validators[0]} did not validate the container")
