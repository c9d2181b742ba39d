"""Messages between the command and the process that runs the checks: lines of JSON."""

from typing import Literal

import msgspec

from shim.config.model import Config
from shim.doctor.findings import Finding


class Order(msgspec.Struct, frozen=True):
    """The settings to check; the first line of standard input."""

    config: Config


class Report(msgspec.Struct, frozen=True):
    """Progress of a check; a line of standard output."""

    check: int
    """Its place in CHECKS."""
    step: Literal["begun", "found", "ended"]
    finding: Finding | None = None
    """The result, for `found`."""


def encode_order(config: Config) -> bytes:
    """Write an order as a line."""
    return msgspec.json.encode(Order(config), enc_hook=str) + b"\n"


def decode_order(line: bytes) -> Order:
    """Read what `encode_order` has written."""
    return msgspec.json.decode(line, type=Order, dec_hook=lambda kind, value: kind(value))


def encode_report(report: Report) -> bytes:
    """Write a report as a line."""
    return msgspec.json.encode(report) + b"\n"


def decode_report(line: bytes) -> Report:
    """Read what `encode_report` has written."""
    return msgspec.json.decode(line, type=Report)
