from shim.cgroup.figures import Cpu, Pressure, Psi
from shim.stats import messages

SOME = Pressure(total=5, avg10=0.1, avg60=0.2, avg300=0.3)


def test_pressure_is_replaced_and_unset_if_unreported() -> None:
    message = messages.cpu_usage(Cpu(1, Psi(SOME, SOME)), at=2, rate=3)
    messages.set_cpu_usage(message, Cpu(4, Psi(SOME, None)), at=5, rate=6)
    assert message == messages.cpu_usage(Cpu(4, Psi(SOME, None)), at=5, rate=6)
    assert not message.psi.HasField("Full")

    messages.set_cpu_usage(message, Cpu(7), at=8, rate=9)

    assert (message.usage_core_nano_seconds.value, message.timestamp, message.usage_nano_cores.value) == (7, 8, 9)
    assert not message.HasField("psi")
