"""The interceptor of all RPCs: request id, deadline scope, log line, and the status of an error.

A single interceptor does all of this, since the parts need each other: the log line has the code of the response, and
the handler logs with the request id. Each RPC runs in its copy of the context, so a thread returns to the pool without
a reset, and a streaming response has its scope at each item, whichever thread asks for the item.
"""

import contextvars
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
import structlog
from google.protobuf.message import Message

from shim.base import deadline, meter
from shim.cri.admission import Admission
from shim.cri.context import new_request_id, scope_of, subjects_of
from shim.cri.grpc_codes import code_of, details_of
from shim.cri.rpcs import RPCS
from shim.cri.unknown_fields import UnknownFieldWarnings
from shim.domain.errors import ShimError, Unsupported

T = TypeVar("T")
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only
Unary = Callable[[Message, grpc.ServicerContext], Message]
Streaming = Callable[[Message, grpc.ServicerContext], Iterator[Message]]
NamesOf = Callable[[str], dict[str, str]]

_EXPECTED_OF_READS = frozenset(
    {grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED}
    | {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}
)
"""Codes of reads that are not logged as errors. The kubelet reads every second: during an outage of Docker these lines
would hide the single line that reports the outage."""

log = structlog.get_logger(__name__)


class CallInterceptor(grpc.ServerInterceptor):
    """Wraps the handler of each RPC, unary or with a streaming response."""

    def __init__(self, admission: Admission, *, names_of: NamesOf) -> None:
        self._admission = admission
        self._names_of = names_of
        self._unknown_fields = UnknownFieldWarnings()

    def intercept_service(  # noqa: D102 - of the base class
        self,
        continuation: "Callable[[grpc.HandlerCallDetails], Handler | None]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler | None":
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        rpc = handler_call_details.method.rpartition("/")[2]
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                functools.partial(self._stream, rpc, handler.unary_stream),
                request_deserializer=handler.request_deserializer,
                response_serializer=handler.response_serializer,
            )
        if handler.unary_unary is None:
            return handler  # the CRI has no streaming requests
        return grpc.unary_unary_rpc_method_handler(
            functools.partial(self._unary, rpc, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _unary(self, rpc: str, behaviour: Unary, request: Message, context: grpc.ServicerContext) -> Message:
        call = _Call(rpc, request, context, names_of=self._names_of)
        with self._admit(call):
            if RPCS[rpc].mutates:
                call.run(lambda: self._unknown_fields.warn(request))
            answer = call.run(lambda: behaviour(request, context))
            call.done(answer)
            return answer

    def _stream(
        self, rpc: str, behaviour: Streaming, request: Message, context: grpc.ServicerContext
    ) -> Iterator[Message]:
        call = _Call(rpc, request, context, names_of=self._names_of)
        with self._admit(call):
            answers = call.run(lambda: behaviour(request, context))
            while (answer := call.run(lambda: next(answers, None))) is not None:
                yield answer
            call.done()

    @contextmanager
    def _admit(self, call: "_Call") -> Iterator[None]:
        """Admit an RPC for the block. A refusal, or a failure in the block, ends the RPC with its status."""
        try:
            ticket = self._admission.enter(call.rpc, call.scope)
        except ShimError as refusal:
            call.fail(refusal)
        try:
            yield
        except Exception as failure:  # noqa: BLE001 - the outermost handler: it logs and answers every failure
            call.fail(self._admission.cause_of(failure))
        finally:
            self._admission.leave(ticket)


class _Call:
    """An RPC: the context it runs in, and how it ends."""

    __slots__ = ("_began", "_grpc", "_variables", "rpc", "scope")

    def __init__(self, rpc: str, request: Message, context: grpc.ServicerContext, *, names_of: NamesOf) -> None:
        subjects = subjects_of(request)
        if RPCS[rpc].mutates:  # only failed reads have a log line
            subjects = names_of(subjects.get("container") or subjects.get("sandbox", "")) | subjects
        self._began = time.monotonic()
        self.rpc = rpc
        self._grpc = context
        self.scope = scope_of(context)
        self._variables = contextvars.copy_context()
        self._variables.run(
            structlog.contextvars.bind_contextvars,
            request=new_request_id(),
            method=rpc,
            **subjects,
        )

    def run(self, work: Callable[[], T]) -> T:
        """Call `work` in the context and scope of this RPC."""
        return self._variables.run(self._run_in_scope, work)

    def _run_in_scope(self, work: Callable[[], T]) -> T:
        with deadline.entered(self.scope):
            return work()

    def done(self, answer: Message | None = None) -> None:
        """Log that the RPC succeeded."""
        level = "info" if RPCS[self.rpc].mutates else "debug"
        self._report(grpc.StatusCode.OK)
        self._log(level, "answered", **({} if answer is None else subjects_of(answer)))

    def fail(self, failure: Exception) -> NoReturn:
        """Log `failure` and end the RPC with its status."""
        if isinstance(failure, NotImplementedError) and self._is_unimplemented():
            failure = Unsupported(f"{self.rpc} is not implemented")
        code = code_of(failure)
        self._report(code)
        if code is grpc.StatusCode.INTERNAL:
            self._log("error", "failed", code=code.name, exc_info=failure)
        elif not RPCS[self.rpc].mutates and code in _EXPECTED_OF_READS:
            self._log("debug", "failed", code=code.name, error=failure)
        else:
            self._log("error", "failed", code=code.name, error=failure)
        self._grpc.abort(code, details_of(failure))

    def _report(self, code: grpc.StatusCode) -> None:
        meter.report(meter.Kind.RPC, self.rpc, code.name, seconds=time.monotonic() - self._began)

    def _is_unimplemented(self) -> bool:
        # Only the generated base class sets a code itself, in its handler of an RPC that is not implemented.
        code: grpc.StatusCode = self._grpc.code()  # type: ignore[attr-defined] # missing in the stubs
        return code is grpc.StatusCode.UNIMPLEMENTED

    def _log(self, level: str, event: str, **values: object) -> None:
        milliseconds = round((time.monotonic() - self._began) * 1000, 1)
        self._variables.run(getattr(log, level), event, ms=milliseconds, **values)
