"""Compiled definitions of NRI and ttrpc against the table of wire facts."""

from collections import defaultdict
from pathlib import Path

import pytest

from shim.api.nri import nri_pb2, ttrpc_pb2
from tests.api.definitions import Facts, compiled, facts_from_definition

TABLE = Path(__file__).parents[1] / "data/nri-v1alpha1.tsv"


def facts_of_table() -> dict[str, Facts]:
    found: dict[str, Facts] = {}
    for line in TABLE.read_text().splitlines():
        match line.split("\t"):
            case ["package", package]:
                facts = found[package] = Facts({}, defaultdict(dict), defaultdict(dict))
            case ["rpc", service, method, request, response]:
                facts.rpcs[f"{service}/{method}"] = f"{request} -> {response}"
            case ["value", enum, value, number]:
                facts.enums[enum][value] = int(number)
            case ["message", message]:
                facts.messages[message] = {}
            case ["field", message, field, number, kind]:
                facts.messages[message][field] = f"{number}: {kind.replace(', ', ',')} []"
            case [comment]:
                assert comment.startswith("#"), line
            case _:
                pytest.fail(f"not a row: {line!r}")
    return found


FOUND = {
    descriptor.package: facts_from_definition(compiled(descriptor))
    for descriptor in (nri_pb2.DESCRIPTOR, ttrpc_pb2.DESCRIPTOR)
}
EXPECTED = facts_of_table()


@pytest.mark.parametrize("package", EXPECTED)
def test_definition_has_the_rpcs_of_the_table(package: str) -> None:
    assert FOUND[package].rpcs == EXPECTED[package].rpcs


@pytest.mark.parametrize("package", EXPECTED)
def test_definition_has_the_messages_of_the_table(package: str) -> None:
    assert FOUND[package].messages == EXPECTED[package].messages


@pytest.mark.parametrize("package", EXPECTED)
def test_definition_has_the_values_of_the_table(package: str) -> None:
    enums = {enum: values for enum, values in EXPECTED[package].enums.items() if enum != "Field"}
    assert FOUND[package].enums == enums
