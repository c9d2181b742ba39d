import pytest

from shim.config.cri_dockerd_flags import ALIASES, IGNORED, warnings
from shim.config.fields import fields


def test_aliases_lead_to_fields() -> None:
    assert set(ALIASES.values()) <= set(fields())


def test_no_flag_is_both_ignored_and_a_setting() -> None:
    assert not {entry.flag for entry in IGNORED} & {field.flag for field in fields().values()}


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
def test_flag_that_requests_existing_behaviour_gives_no_warning(flag: str, value: str) -> None:
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
def test_ignored_flag_gives_a_single_warning(flag: str, value: str) -> None:
    [word] = warnings({flag: value})

    assert word.startswith(f"flag {flag} is ignored: ")
