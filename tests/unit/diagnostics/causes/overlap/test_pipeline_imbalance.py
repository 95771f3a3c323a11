"""One stage of a pipeline computes longer than the others."""

import json

import pytest

from diagnostics.causes.overlap import pipeline_imbalance
from diagnostics.contract.findings import text_of
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.overlap.layouts import decide, pipeline


def test_the_longest_stage_gives_blocks_away(tmp_path):
    finding = decide(pipeline_imbalance, pipeline(0.2, 0.1, 1.6, 2, blocks=[2, 2, 9, 3]), tmp_path)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (2,), (0, 1, 3))
    change = text_of(finding).remedies[0].change
    assert change.startswith("'parallel.blocks_per_stage=[")
    moved = json.loads(change.strip("'").partition("=")[2])
    assert sum(moved) == 16 and moved[2] < 9 and min(moved) >= 2
    assert finding.cost.value == pytest.approx(100 * 0.8 * 0.6)


@pytest.mark.parametrize("changes", [{"imbalance": 1.2}, {"imbalance": 1.6, "steps": 4}])
def test_small_differences_and_few_steps_say_nothing(tmp_path, changes):
    assert decide(pipeline_imbalance, pipeline(**changes), tmp_path).status != "confirmed"


@pytest.mark.parametrize("changes", [{"busiest": 4}, {"busiest": -1}, {"busiest": None}, {"busiest": 2, "pp": 10**14}])
def test_a_stage_that_the_layout_does_not_have_is_no_longest_one(tmp_path, changes):
    finding = decide(pipeline_imbalance, pipeline(imbalance=1.6, **changes), tmp_path)
    assert "blocks_per_stage=[2" not in str(text_of(finding).remedies)
    assert finding.status == "undecided" or changes["busiest"] == 2


@pytest.mark.parametrize("blocks", [[], [8, 8], [2, 2, 9, -3], [2, 2, 10**14, 3], ["2", None, 9, 3]])
def test_without_the_blocks_of_each_stage_nothing_is_computed_from_them(tmp_path, blocks):
    finding = decide(pipeline_imbalance, pipeline(0.2, 0.1, 1.6, 2, blocks=blocks), tmp_path)
    assert finding.status == "confirmed" and text_of(finding).remedies[0].change.startswith("move blocks")


def test_a_longest_stage_that_changes_is_chance(tmp_path):
    leftovers = pipeline(imbalance=1.6)
    lines = leftovers["metrics.jsonl"].splitlines()
    texts = [line.replace('"pipeline_busiest": 3', f'"pipeline_busiest": {n % 4}') for n, line in enumerate(lines)]
    assert decide(pipeline_imbalance, {**leftovers, "metrics.jsonl": "\n".join(texts)}, tmp_path).status == "ruled_out"


def test_without_a_run_it_is_open(tmp_path):
    (result,) = pipeline_imbalance.CAUSE.decide(
        pipeline_imbalance.CAUSE.facts(Evidence(root=tmp_path, limits=Limits()))
    )
    assert result.status == "undecided" and text_of(result).missing


EXAMPLES = {"overlap.pipeline_imbalance": Example(lambda: pipeline(0.2, 0.1, 1.6, 2), (2,))}
