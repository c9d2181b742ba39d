"""A seed determines the schedule."""

from itertools import islice

from integration.chaos.plan import AT_ONCE, IDS, MOST_FAULTS, MOST_PODS, Plan, plans

FAULTS = ("server kill", "server stop", "docker kill", "docker stop", "link cut")


def some(seed: int, *, count: int = 200) -> list[Plan]:
    return list(islice(plans(seed, faults=FAULTS, longest=30), count))


def test_the_same_seed_gives_the_same_schedule() -> None:
    assert some(1) == some(1)
    assert some(1) != some(2)


def test_pods_come_and_go_within_their_limits() -> None:
    present: set[str] = set()
    for plan in some(3):
        made = {pod.name for pod in plan.made}
        removed = {pod.name for pod in plan.removed}
        assert removed <= present
        assert not made & present
        assert len(made) + len(removed) <= AT_ONCE
        present = present - removed | made
        assert len(present) <= MOST_PODS


def test_a_third_of_the_pods_are_in_user_namespaces() -> None:
    first_ids = [pod.first_id for plan in some(6) for pod in plan.made]
    own = [first_id for first_id in first_ids if first_id]
    assert 0.25 < len(own) / len(first_ids) < 0.42
    assert len(set(own)) == len(own)
    assert min(own) >= IDS


def test_faults_of_one_round_hit_different_parts() -> None:
    for plan in some(4):
        parts = [step.fault.partition(" ")[0] for step in plan.steps]
        assert 1 <= len(parts) == len(set(parts)) <= MOST_FAULTS
        assert all(0 < step.seconds <= 30 for step in plan.steps)
        last = max(step.at + step.seconds for step in plan.steps)
        assert all(0 <= at <= last for at in [pod.at for pod in plan.made] + [pod.at for pod in plan.removed])


def test_every_fault_occurs() -> None:
    assert {step.fault for plan in some(5) for step in plan.steps} == set(FAULTS)
