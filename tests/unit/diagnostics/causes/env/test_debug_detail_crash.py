"""`env.debug_detail_crash`: ranks that die by SIGSEGV under TORCH_DISTRIBUTED_DEBUG=DETAIL."""

import pytest

from diagnostics.evidence.model import Frame, RankError
from tests.unit.diagnostics.causes.env.evidence import decide, dtk_run, job

DETAIL = "env.debug_detail_crash"


@pytest.mark.parametrize(
    ("frames", "confidence"), [((), 0.6), ((Frame("torch/nn/parallel/distributed.py", 9, "_ddp_init_helper"),), 0.9)]
)
def test_detail_that_crashes_ddp(frames, confidence):
    crashed = [RankError(rank, "error.json", 0, "", "", frames, "SIGSEGV") for rank in (1, 0)]
    run = dtk_run({"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    result = decide(job(errors=crashed, run=run))[DETAIL]
    assert (result.status, result.ranks, result.confidence) == ("confirmed", (0, 1), confidence)
    other = decide(job(errors=crashed, run=dtk_run({"TORCH_DISTRIBUTED_DEBUG": "INFO"})))[DETAIL]
    assert other.status == "ruled_out"
    assert decide(job(run=run))[DETAIL].status == "ruled_out", "nobody died"
