from integration.conformance.scenario import chosen
from integration.kind.scenarios import LEFT_OUT, selected


def test_what_is_left_out_is_there_to_be_left_out() -> None:
    assert {each.name for each in chosen("")} >= LEFT_OUT


def test_the_rest_runs_but_for_what_disturbs_the_node() -> None:
    names = {each.name for each in chosen(selected())}

    assert names == {each.name for each in chosen("") if not each.alone} - LEFT_OUT
    assert len(names) > len(LEFT_OUT)
