from shim.base.backoff import backoff


def test_the_pause_doubles_with_each_failure_up_to_the_longest() -> None:
    assert [backoff(failures, first=0.5, longest=3.0) for failures in range(1, 6)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_any_number_of_failures_has_a_pause() -> None:
    assert backoff(1_000_000, first=0.05, longest=30.0) == 30.0
