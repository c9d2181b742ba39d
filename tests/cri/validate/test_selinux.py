import pytest

from shim.api.v1 import api_pb2 as pb
from shim.cri.validate.selinux import selinux
from shim.domain.errors import InvalidArgument


@pytest.mark.parametrize(
    # The last is a name for a level in setrans.conf.
    "level",
    ["", "s0", "s0:c1", "s0:c1,c5", "s0:c0.c1023", "s0-s15:c0.c1023", "s0:c1-s2:c3,c4.c6", "SystemLow-SystemHigh"],
)
def test_valid_selinux_levels_pass(level: str) -> None:
    selinux(pb.SELinuxOption(user="system_u", role="system_r", type="svirt_lxc_net_t", level=level), field="f")


@pytest.mark.parametrize(
    ("part", "value"),
    [
        *(("level", text) for text in ('s0"', "s0\\", "s0 ", "s0\n", "s0=", "é")),
        *((part, text) for part in ("user", "role", "type") for text in ("a:b", "a b", "a,b", "é", "a\n")),
    ],
)
def test_malformed_selinux_options_are_refused(part: str, value: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        selinux(pb.SELinuxOption(**{part: value}), field="f")
    assert str(refusal.value).startswith(f"f.{part} {value!r}")
