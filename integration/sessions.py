"""A minimal streaming client: it speaks just enough SPDY to open streams, and counts bytes."""

import socket
import sys
from urllib.parse import urlsplit

from integration.cri import Cri
from integration.node.commands import NodeError
from shim.api.v1 import api_pb2 as pb
from tests.streaming.spdy.client import Deflater, counted, syn_stream

_PIECE = 256 * 1024


class Client:
    """An upgraded connection with open streams."""

    def __init__(self, url: str, protocol: str, *headers: dict[str, str]) -> None:
        where = urlsplit(url)
        self.socket = socket.create_connection((where.hostname or "", where.port or 0))
        self.socket.sendall(
            f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"
            f"X-Stream-Protocol-Version: {protocol}\r\n\r\n".encode()
        )
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += self.socket.recv(1)
        if b" 101 " not in answer:
            raise NodeError(f"the upgrade was refused: {answer!r}")
        deflater = Deflater()
        for index, each in enumerate(headers):
            self.socket.sendall(syn_stream(1 + 2 * index, deflater.deflate(counted(each.items()))))

    def drain(self, until: int = sys.maxsize) -> int:
        """Read to the end, or until `until` bytes have come; return their number."""
        buffer, count = bytearray(_PIECE), 0
        while count < until and (got := self.socket.recv_into(buffer)):
            count += got
        return count

    def read_until(self, output: bytes) -> None:
        """Read until `output` has come. Raises NodeError when the session ends before."""
        read = b""
        while output not in read:
            piece = self.socket.recv(_PIECE)
            if not piece:
                raise NodeError(f"the session ended without {output!r}: {read!r}")
            read += piece

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def exec_url(cri: Cri, container: str, *command: str) -> str:
    """Return the URL of an exec of `command` with streamed output."""
    return cri.runtime.Exec(pb.ExecRequest(container_id=container, cmd=command, stdout=True, stderr=True)).url


def exec_client(url: str) -> Client:
    """Open the session at a URL of `exec_url`."""
    return Client(url, "v4.channel.k8s.io", *({"streamtype": kind} for kind in ("error", "stdout", "stderr")))


def exec_session(cri: Cri, container: str, *command: str) -> Client:
    """Run a command in a container with streamed output."""
    return exec_client(exec_url(cri, container, *command))
