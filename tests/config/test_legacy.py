import pytest

from shim.config.fields import fields
from shim.config.legacy import ALIASES, LEGACY, warnings


def test_aliases_lead_to_fields() -> None:
    assert set(ALIASES.values()) <= set(fields())


def test_no_flag_is_both_legacy_and_a_setting() -> None:
    assert not {legacy.flag for legacy in LEGACY} & {field.flag for field in fields().values()}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--ipv6-dual-stack", "true"),
        ("--ipv6-dual-stack", "True"),
        ("--hairpin-mode", "none"),
        ("--hairpin-mode", "hairpin-veth"),
        ("--network-plugin-mtu", "0"),
        ("--runtime-cgroups", ""),
    ],
)
def test_what_asks_for_what_is_done_anyhow_needs_no_word(flag: str, value: str) -> None:
    assert warnings({flag: value}) == []


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--ipv6-dual-stack", "false"),
        ("--hairpin-mode", "hairpin-weth"),
        ("--network-plugin-mtu", "1400"),
        ("--runtime-cgroups", "/system.slice"),
    ],
)
def test_what_is_ignored_is_reported_once(flag: str, value: str) -> None:
    [word] = warnings({flag: value})

    assert word.startswith(f"flag {flag} is ignored: ")
