"""The listening socket of the streaming server, and the base of its URLs."""

import errno
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument, reason_of

_BACKLOG = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A bound socket; `tls` is None for plain HTTP."""

    socket: socket.socket
    tls: ssl.SSLContext | None
    base_url: str
    hosts: frozenset[str]
    """Values of the Host header that name this server."""
    taken: str = ""
    """Why another port than the configured port is used; empty if the configured port is used."""


def listen(config: Config) -> Listener:
    """Bind the configured streaming address, or a free port if the port is in use.

    Raise InvalidArgument if the settings contradict each other, FailedPrecondition if the address cannot be bound or a
    TLS file cannot be loaded.
    """
    address, _, port = config.streaming_bind_addr.rpartition(":")
    ip = ipaddress.ip_address(address.strip("[]"))
    tls = _tls(config)
    if tls is None and not ip.is_loopback and not config.streaming_allow_plain_remote:
        raise InvalidArgument(
            f"streaming_bind_addr {config.streaming_bind_addr} is not a loopback address: exec would be served in "
            "plain text to the network; give streaming_tls_cert_file and streaming_tls_key_file, or set "
            "streaming_allow_plain_remote to true"
        )
    bound, taken = _bind_or_another(ip, int(port))
    number = bound.getsockname()[1]
    # Clients cannot connect to a wildcard address, and clients of the CRI are on this machine.
    reached = ip if not ip.is_unspecified else ipaddress.ip_address("127.0.0.1" if ip.version == 4 else "::1")
    host = f"[{reached}]" if reached.version == 6 else str(reached)
    scheme = "http" if tls is None else "https"
    return Listener(
        socket=bound,
        tls=tls,
        base_url=f"{scheme}://{host}:{number}",
        hosts=frozenset({f"{host}:{number}", f"localhost:{number}"}),
        taken=taken,
    )


def _bind_or_another(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> tuple[socket.socket, str]:
    """Bind the port, or a free port if it is in use; return the socket and the reason. URLs contain the port."""
    try:
        return _bind(ip, port), ""
    except FailedPrecondition as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EADDRINUSE:
            raise
        return _bind(ip, 0), str(error)


def _bind(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> socket.socket:
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((str(ip), port))
        bound.listen(_BACKLOG)
    except OSError as error:
        bound.close()
        raise FailedPrecondition(f"listen for streaming on {ip} port {port}: {reason_of(error)}") from error
    return bound


def _tls(config: Config) -> ssl.SSLContext | None:
    cert, key, client_ca = (
        config.streaming_tls_cert_file,
        config.streaming_tls_key_file,
        config.streaming_tls_client_ca_file,
    )
    if not cert and not key and not client_ca:
        return None
    if not cert or not key:
        raise InvalidArgument("streaming_tls_cert_file and streaming_tls_key_file must be given together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Only HTTP/1.1 can be upgraded to SPDY or WebSocket.
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(Path(cert), Path(key))
        if client_ca:
            context.load_verify_locations(Path(client_ca))
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # or ssl.SSLError, a subclass
        raise FailedPrecondition(f"load the streaming TLS files {cert}, {key} {client_ca}: {error}") from error
    return context
