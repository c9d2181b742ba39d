"""Forged packets from a pod to loopback addresses of its node.

Any container with CAP_NET_RAW, which Docker gives to all, can send them.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from integration.node.netns import Netns

_SENDER = """
import json, random, socket, struct, sys

def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff

def syn(source, target, port, number):
    addresses = socket.inet_aton(source) + socket.inet_aton(target)
    tcp = struct.pack("!HHIIBBHHH", number, port, 1000, 0, 5 << 4, 2, 64240, 0, 0)
    tcp = tcp[:16] + struct.pack("!H", checksum(addresses + struct.pack("!BBH", 0, 6, 20) + tcp)) + tcp[18:]
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 40, 1, 0, 64, 6, 0) + addresses
    return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp

mac, source, targets = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sending = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
sending.bind(("eth0", 0))
sending.settimeout(30)
own = sending.getsockname()[4]
numbers = {}
for number, (target, port) in zip(random.sample(range(20000, 60000), len(targets)), targets):
    numbers[number] = target
    sending.send(bytes.fromhex(mac.replace(":", "")) + own + bytes([8, 0]) + syn(source, target, port, number))
answered = []
while not answered or answered[-1] != targets[-1][0]:
    frame = sending.recv(2048)
    if frame[:6] == own and frame[23] == 6:
        number = struct.unpack("!H", frame[36:38])[0]
        if number in numbers:
            answered.append(numbers[number])
print(json.dumps(answered))
"""


def answering(pod: Netns, *, source: str, mac: str, targets: Sequence[tuple[str, int]]) -> list[str]:
    """Send a SYN from a pod through `mac` to each address and port; return the addresses that answer, in order.

    The last target must answer: once it has, the others have answered or never will.
    """
    limits = ("setpriv", "--inh-caps=-all,+net_raw", "--bounding-set=-all,+net_raw")
    done = subprocess.run(
        [*pod.prefix, *limits, sys.executable, "-c", _SENDER, mac, source, json.dumps(targets)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answers: list[str] = json.loads(done.stdout)
    return answers


def link_address(netns: Netns, link: str) -> str:
    """Return the hardware address of an interface."""
    links: Sequence[Mapping[str, str]] = json.loads(netns.run(f"ip -json link show {link}"))
    return links[0]["address"]
