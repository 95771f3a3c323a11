"""What causes about mesh dimensions share: the ranks at a place along pp, and what a share of the step costs."""

import json
from math import prod
from pathlib import Path

from hypothesis import given, settings, strategies as st

from diagnostics.analysis.run_records import Figures, read
from diagnostics.causes.declared import Texts
from diagnostics.causes.overlap._layout import at_place, slow
from diagnostics.contract.findings import Group, text_of
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from diagnostics.evidence.model import Evidence
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.ring_bytes import run_files

DEGREES = st.fixed_dictionaries({name: st.integers(1, 3) for name in ("pp", "dp_shard", "tp")})


def figures(folder: Path, degrees: dict[str, int], step_s: float = 0.1) -> Figures:
    rows = [{"step": step, "loss": 2.0, "step_time_s": step_s} for step in range(1, 9)]
    metrics = "".join(json.dumps(row) + "\n" for row in rows)
    Example(lambda: {**run_files(degrees), "metrics.jsonl": metrics}).write(folder)
    return read(gather(folder, Limits()))


@given(DEGREES)
@settings(max_examples=15)
def test_every_rank_is_at_one_place_and_a_pipeline_has_one_rank_of_each(tmp_path_factory, degrees) -> None:
    result = figures(tmp_path_factory.mktemp("run"), degrees)
    places = [at_place(result, place) for place in range(degrees["pp"])]
    ranks = [rank for here, _ in places for rank in here]
    assert sorted(ranks) == [*range(prod(degrees.values()))]
    for here, group in places:
        assert {*here} <= {*group.ranks} == {*ranks}, "each pipeline has a stage at each place"
        assert group.name == "pp"


def test_without_a_layout_no_rank_is_named(tmp_path: Path) -> None:
    assert at_place(Figures(Evidence(tmp_path, Limits()), None), 0) == ((), Group("pp", ()))


def test_a_share_of_the_step_is_its_cost_and_the_others_of_the_group_are_victims(tmp_path: Path) -> None:
    result = figures(tmp_path, {"pp": 4})
    (tmp_path / "toy.yaml").write_text("texts: {default: {summary: '{why}: {cost}'}}")
    texts = Texts(str(tmp_path / "toy.py"))
    ranks, group = at_place(result, 2)
    finding = slow(result, texts, "default", 0.25, ranks, group, "seen", why="it waits")
    assert finding.cost is not None and (finding.cost.value, finding.cost.unit) == (25.0, "ms per step")
    assert (finding.ranks, finding.victims) == ((2,), (0, 1, 3))
    assert finding.evidence[0].file == "metrics.jsonl"
    summary = text_of(finding).summary
    assert summary.startswith("it waits: ") and "25" in summary and "100" in summary
    nothing = slow(result, texts, "default", 0.0, ranks, group, "seen", why="")
    assert nothing.cost is None
