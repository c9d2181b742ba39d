"""What is published of a scenario that has failed."""

from integration.conformance.runner import last_calls


def test_a_failure_names_files_as_the_repository_has_them() -> None:
    try:
        raise AssertionError
    except AssertionError as failure:
        shown = last_calls(failure)

    assert shown.startswith('  File "tests/integration_conformance/test_runner.py", line ')
