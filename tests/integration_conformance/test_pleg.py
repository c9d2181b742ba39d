"""A kubelet's metrics of its event streams."""

import pytest

from integration.conformance.pleg import Streams, streams

METRICS = """\
# HELP kubelet_evented_pleg_connection_error_count [ALPHA] The number of errors
# TYPE kubelet_evented_pleg_connection_error_count counter
kubelet_evented_pleg_connection_error_count {errors}
# TYPE kubelet_evented_pleg_connection_latency_seconds histogram
kubelet_evented_pleg_connection_latency_seconds_count 7
# TYPE kubelet_evented_pleg_connection_success_count counter
kubelet_evented_pleg_connection_success_count 5
kubelet_pleg_discard_events 9
"""


@pytest.mark.parametrize(("errors", "in_use"), [(0, True), (4, True), (5, False)])
def test_a_kubelet_lists_after_its_fifth_stream_that_failed(errors: int, *, in_use: bool) -> None:
    found = streams(lambda *_words: METRICS.format(errors=errors))

    assert found == Streams(opened=5, failed=errors)
    assert found.in_use is in_use


def test_a_kubelet_without_the_gate_has_no_streams() -> None:
    assert not streams(lambda *_words: "kubelet_pleg_discard_events 9\n").in_use
