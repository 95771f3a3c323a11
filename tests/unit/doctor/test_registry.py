"""The choice among the checks: by name and topic, with what is taken away again."""

import pytest

from dtk.doctor.registry import BETWEEN, CHECKS, chosen, topics
from dtk.errors import DtkError


def names(*only, skip=()):
    checks, between = chosen(only, skip)
    return {check.name for check in checks} | between


def test_without_a_choice_all_are_made():
    assert names() == {check.name for check in CHECKS} | set(BETWEEN)


@pytest.mark.parametrize(
    ("only", "skip", "remaining"),
    [
        (["disk"], [], {"space", "fsync"}),
        (["disk"], ["fsync"], {"space"}),
        (["space,python"], [], {"space", "python"}),
        (["space", " python "], [], {"space", "python"}),
        (["nodes"], [], set(BETWEEN)),
        (["nodes,space"], ["clock"], {"space", "agreement", "reach"}),
    ],
)
def test_names_topics_and_lists(only, skip, remaining):
    assert names(*only, skip=skip) == remaining


def test_checks_are_made_in_their_own_order():
    checks, _ = chosen(["space,python"], [])
    assert [check.name for check in checks] == ["python", "space"]


@pytest.mark.parametrize(
    ("only", "skip", "what"),
    [
        (["spice"], [], '--only: there is no check "spice"'),
        ([], ["disks"], '--skip: there is no check "disks"'),
        ([""], [], 'there is no check ""'),
        (["disk"], ["disk"], "no check is left"),
    ],
)
def test_a_choice_that_is_none_is_refused(only, skip, what):
    with pytest.raises(DtkError) as refused:
        chosen(only, skip)
    assert what in str(refused.value)


def test_names_are_unique_and_no_topic_is_called_like_a_check_of_another():
    every = [check.name for check in CHECKS] + list(BETWEEN)
    assert len(every) == len(set(every))
    assert topics()[-1] == "nodes" and len(topics()) == len(set(topics()))
    by_name = {check.name: check.topic for check in CHECKS}
    assert all(by_name.get(topic, topic) == topic for topic in topics())
