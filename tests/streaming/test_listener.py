import socket
from pathlib import Path

import pytest

from shim.config.model import Config
from shim.domain.errors import FailedPrecondition, InvalidArgument
from shim.streaming.listener import listen


def test_the_default_is_a_free_port_of_loopback() -> None:
    listener = listen(Config())
    with listener.socket:
        port = listener.socket.getsockname()[1]

        assert listener.socket.getsockname()[0] == "127.0.0.1"
        assert listener.base_url == f"http://127.0.0.1:{port}"
        assert listener.hosts == {f"127.0.0.1:{port}", f"localhost:{port}"}
        assert listener.tls is None


def test_the_url_of_an_ipv6_address_has_brackets() -> None:
    listener = listen(Config(streaming_bind_addr="[::1]:0"))
    with listener.socket:
        assert listener.base_url == f"http://[::1]:{listener.socket.getsockname()[1]}"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"])
def test_an_address_other_than_loopback_requires_tls(address: str) -> None:
    with pytest.raises(InvalidArgument, match="streaming_allow_plain_remote"):
        listen(Config(streaming_bind_addr=address))


def test_a_setting_allows_plain_http_on_other_addresses() -> None:
    listener = listen(Config(streaming_bind_addr="0.0.0.0:0", streaming_allow_plain_remote=True))
    with listener.socket:
        assert listener.base_url == f"http://127.0.0.1:{listener.socket.getsockname()[1]}"


def test_tls_is_allowed_on_any_address(certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    config = Config(
        streaming_bind_addr="0.0.0.0:0",
        streaming_tls_cert_file=cert,
        streaming_tls_key_file=key,
        streaming_tls_client_ca_file=cert,
    )
    listener = listen(config)
    with listener.socket:
        assert listener.base_url.startswith("https://127.0.0.1:")
        assert listener.tls is not None


@pytest.mark.parametrize("field", ["streaming_tls_cert_file", "streaming_tls_key_file", "streaming_tls_client_ca_file"])
def test_a_certificate_without_its_key_is_refused(field: str) -> None:
    with pytest.raises(InvalidArgument, match="must be given together"):
        listen(Config(**{field: "/x.pem"}))  # type: ignore[arg-type]


def test_the_error_names_tls_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=f"{tmp_path}/none.pem"):
        listen(Config(streaming_tls_cert_file=f"{tmp_path}/none.pem", streaming_tls_key_file=f"{tmp_path}/none.pem"))


def test_a_port_in_use_is_replaced_by_a_free_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        got = listen(Config(streaming_bind_addr=f"127.0.0.1:{port}"))
    with got.socket:
        assert got.taken == f"listen for streaming on 127.0.0.1 port {port}: address already in use"
        assert got.base_url == f"http://127.0.0.1:{got.socket.getsockname()[1]}"
        assert got.base_url != f"http://127.0.0.1:{port}"


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(FailedPrecondition, match=r"listen for streaming on 192\.0\.2\.1 port 4000: "):
        listen(Config(streaming_bind_addr="192.0.2.1:4000", streaming_allow_plain_remote=True))
