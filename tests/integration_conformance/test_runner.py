"""Published failures of scenarios."""

from integration.conformance.runner import last_calls


def test_a_failure_names_files_relative_to_the_repository() -> None:
    try:
        raise AssertionError
    except AssertionError as failure:
        shown = last_calls(failure)

    assert shown.startswith('  File "tests/integration_conformance/test_runner.py", line ')
