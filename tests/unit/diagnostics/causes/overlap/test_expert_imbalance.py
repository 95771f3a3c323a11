"""One rank of an expert-parallel group gets most of the tokens."""

import pytest

from diagnostics.causes.overlap import expert_imbalance
from diagnostics.contract.findings import text_of
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.overlap.layouts import decide, experts, pipeline


def test_a_rank_whose_experts_get_all(tmp_path):
    found = decide(expert_imbalance, experts(), tmp_path)
    assert found.status == "confirmed" and "2.00 times the mean" in text_of(found).summary
    assert text_of(found).remedies[0].change == "model.balance_loss=0.1"
    share = 4 * 3 * 2 * 64 * 128 / (4 * (3 * 2 * 64 * 128 + 4 * 64**2) + 256 * 64)
    assert found.cost.value == pytest.approx(100 * share * 0.5, abs=1e-3)


@pytest.mark.parametrize("leftovers", [experts(1.6), experts(vocab_size=50_000_000), pipeline()])
def test_even_experts_small_ones_and_none(tmp_path, leftovers):
    assert decide(expert_imbalance, leftovers, tmp_path).status == "ruled_out"


def test_without_a_run_it_is_open(tmp_path):
    (found,) = expert_imbalance.CAUSE.decide(expert_imbalance.CAUSE.facts(Evidence(root=tmp_path, limits=Limits())))
    assert found.status == "undecided" and text_of(found).missing


EXAMPLES = {"overlap.expert_imbalance": Example(experts, (0, 1, 2, 3))}
