"""The stages of a pipeline wait more than they have to."""

import pytest
import yaml

from diagnostics.causes.overlap import pipeline_bubble
from diagnostics.contract.findings import text_of
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.overlap.layouts import PP, decide, pipeline


def test_too_few_micro_batches(tmp_path):
    finding = decide(pipeline_bubble, pipeline(), tmp_path)
    assert (finding.status, finding.ranks, finding.group.ranks) == ("confirmed", (0, 1, 2, 3), (0, 1, 2, 3))
    assert text_of(finding).remedies[0].change == "parallel.microbatches=16"
    assert "Stage 3 computes longest" in text_of(finding).summary
    # With four micro-batches per stage the bubble of four stages is 3/19.
    assert finding.cost.value == pytest.approx(100 * (1 - (1 - 0.43) / (1 - 3 / 19)), abs=1e-3)


def test_a_batch_that_does_not_divide_so_far_has_to_grow(tmp_path):
    leftovers = pipeline()
    leftovers["config.yaml"] = yaml.safe_dump({**PP, "train": {"global_batch_size": 12}})
    finding = decide(pipeline_bubble, leftovers, tmp_path)
    assert text_of(finding).remedies[0].change == "train.global_batch_size=16 parallel.microbatches=16"


def test_enough_micro_batches_are_no_finding_and_the_rest_counts_on_devices_only(tmp_path):
    assert decide(pipeline_bubble, pipeline(0.4, 0.1), tmp_path / "cpu").status == "ruled_out"
    leftovers = pipeline(0.4, 0.1)
    leftovers["config.yaml"] = yaml.safe_dump({**PP, "launcher": {"device": "cuda"}})
    finding = decide(pipeline_bubble, leftovers, tmp_path / "cuda")
    assert finding.status == "confirmed" and "communication that no compute overlaps" in text_of(finding).summary
    uneven = pipeline(0.4, 0.1, imbalance=1.5)
    uneven["config.yaml"] = leftovers["config.yaml"]
    assert decide(pipeline_bubble, uneven, tmp_path / "uneven").status == "ruled_out", "the long stage explains it"


def test_without_a_run_it_is_open(tmp_path):
    (result,) = pipeline_bubble.CAUSE.decide(pipeline_bubble.CAUSE.facts(Evidence(root=tmp_path, limits=Limits())))
    assert result.status == "undecided" and text_of(result).missing


EXAMPLES = {"overlap.pipeline_bubble": Example(pipeline, (0, 1, 2, 3))}
