"""One rank of an expert-parallel group gets most of the tokens."""

import pytest

from diagnostics.causes.overlap import expert_imbalance
from diagnostics.contract.findings import text_of
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.overlap.layouts import decide, experts, pipeline


def test_a_rank_whose_experts_get_all(tmp_path):
    finding = decide(expert_imbalance, experts(), tmp_path)
    assert finding.status == "confirmed" and "2.00 times the mean" in text_of(finding).summary
    assert text_of(finding).remedies[0].change == "model.balance_loss=0.1"
    share = 4 * 3 * 2 * 64 * 128 / (4 * (3 * 2 * 64 * 128 + 4 * 64**2) + 256 * 64)
    assert finding.cost.value == pytest.approx(100 * share * 0.5, abs=1e-3)


STAGES = (("pp", 2), ("dp_shard", 2), ("tp", 2))


@pytest.mark.parametrize(
    ("loads", "ranks", "victims", "group", "said"),
    [
        ([1, 1, 1, 1, 1.1, 0.9, 0.2, 1.8], (7,), (6,), "ep group 1 of stage 1", "The experts of rank 7 get 1.80 times"),
        ([2, 0] * 4, (0, 2, 4, 6), (1, 3, 5, 7), "4 ep groups", "get 2.00 times"),
        ([1.1, 0.9] * 4, tuple(range(8)), (), "4 ep groups", "a different one in each block"),
        ([2, 0], tuple(range(8)), (), "4 ep groups", "The records do not show which rank it is"),
        ([2, 0, 2, 0, 2, 0, "2", 0], tuple(range(8)), (), "4 ep groups", "which rank it is"),
    ],
)
def test_the_rank_is_named_where_the_loads_of_all_are_known(tmp_path, loads, ranks, victims, group, said):
    load = 1.2 if 1.8 in loads else 1.9  # One ep group of four alone.
    finding = decide(expert_imbalance, experts(load, loads, STAGES, 2), tmp_path)
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", ranks, victims)
    assert (finding.group.name, finding.group.desc) == ("ep", group)
    assert said in text_of(finding).summary
    assert len(text_of(finding).remedies) == 1, "a capacity is refused with tp"


@pytest.mark.parametrize("leftovers", [experts(1.6), experts(vocab_size=50_000_000), pipeline()])
def test_even_experts_small_ones_and_none(tmp_path, leftovers):
    assert decide(expert_imbalance, leftovers, tmp_path).status == "ruled_out"


def test_without_a_run_it_is_open(tmp_path):
    (result,) = expert_imbalance.CAUSE.decide(expert_imbalance.CAUSE.facts(Evidence(root=tmp_path, limits=Limits())))
    assert result.status == "undecided" and text_of(result).missing


EXAMPLES = {"overlap.expert_imbalance": Example(lambda: experts(loads=[2.0, 0.5, 0.75, 0.75]), (0,))}
