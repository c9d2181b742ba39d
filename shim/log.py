"""Logs by structlog: one JSON object a line, or coloured lines for a person.

Every module asks `structlog.get_logger(__name__)`; `configure` decides once where and how lines are written. What the
gRPC door binds (request id, method) is on every line of that request, also from other threads that carry its context.
"""

import logging
import sys

import structlog
from structlog.typing import Processor

from shim.config.model import LogFormat, LogLevel
