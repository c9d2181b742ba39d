from pathlib import Path

from jeepney import DBusAddress, MessageType, Properties, new_method_call, new_signal
from jeepney.io.blocking import DBusConnection, prep_socket

from integration.conformance.logind import Logind
from integration.waiting import wait_until

MANAGER = DBusAddress(
    "/org/freedesktop/login1", bus_name="org.freedesktop.login1", interface="org.freedesktop.login1.Manager"
)


def test_a_shutdown_is_announced_and_waits_for_the_lock(tmp_path: Path) -> None:
    logind = Logind(tmp_path / "bus")
    with DBusConnection(prep_socket(str(tmp_path / "bus"), enable_fds=True), enable_fds=True) as bus:
        (delay,) = bus.send_and_get_reply(Properties(MANAGER).get("InhibitDelayMaxUSec"), timeout=60).body
        assert delay == ("t", 3_600_000_000)
        call = new_method_call(MANAGER, "Inhibit", "ssss", ("shutdown", "kubelet", "time", "delay"))
        (lock,) = bus.send_and_get_reply(call, timeout=60).body
        wait_until(lambda: logind.is_inhibited)

        logind.shut_down(active=True)
        signal = bus.receive(timeout=60)
        assert signal.header.message_type is MessageType.signal
        assert signal.body == (True,)
        assert logind.is_inhibited

        lock.close()
        logind.wait_released(60)
    logind.close()


def test_a_signal_of_one_client_reaches_the_others(tmp_path: Path) -> None:
    logind = Logind(tmp_path / "bus")
    with (
        DBusConnection(prep_socket(str(tmp_path / "bus"), enable_fds=True), enable_fds=True) as kubelet,
        DBusConnection(prep_socket(str(tmp_path / "bus"), enable_fds=True), enable_fds=True) as other,
    ):
        for bus in (kubelet, other):
            bus.send_and_get_reply(Properties(MANAGER).get("InhibitDelayMaxUSec"), timeout=60)
        other.send(new_signal(MANAGER, "PrepareForShutdown", "b", (True,)))
        assert kubelet.receive(timeout=60).body == (True,)
    logind.close()
