import math
from pathlib import Path

import pytest

from diagnostics.causes.numeric.non_finite import CAUSE
from diagnostics.contract.findings import text_of
from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits
from tests.unit.diagnostics.causes.examples import Example
from tests.unit.diagnostics.causes.numeric.runs import foreign, non_finite, run, write
from tests.unit.diagnostics.causes.numeric.trainers import TRAINERS, causes, falling, log

NAN = math.nan
GOOD = [{"step": step, "loss": 3.0 - step / 10, "grad_norm": 1.0} for step in range(1, 5)]
BAD = [*GOOD, *({"step": step, "loss": NAN, "grad_norm": NAN} for step in range(5, 9))]


def decide(evidence):
    (result,) = CAUSE.decide(CAUSE.facts(evidence))
    assert text_of(result).summary
    return result


def changes(result):
    return [remedy.change for remedy in text_of(result).remedies if remedy.kind == "override"]


def test_the_rank_whose_own_loss_broke_first_is_named(tmp_path):
    write(tmp_path, BAD)
    events = {
        0: [non_finite(5, "grad_norm"), non_finite(6)],
        1: [non_finite(5), non_finite(5, "grad_norm")],
        2: [non_finite(5, "grad_norm"), non_finite(6)],
    }
    finding = decide(run(tmp_path, events, world_size=3))
    assert (finding.status, finding.ranks, finding.victims, finding.step) == ("confirmed", (1,), (0, 2), 5)
    assert text_of(finding).summary.startswith("The loss of rank 1 became nan at step 5;")
    assert (finding.cost.value, finding.cost.unit) == (4.0, "steps lost")
    assert finding.evidence[0].file == "events/rank_00001.jsonl"
    assert "rank 1 in step 5" in text_of(finding).remedies[0].change
    assert finding.confidence > 0.9


def test_when_all_ranks_break_at_once_nobody_is_blamed(tmp_path):
    write(tmp_path, BAD)
    finding = decide(run(tmp_path, {rank: [non_finite(5)] for rank in range(2)}))
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (), ())
    assert "did not begin on a single rank" in text_of(finding).summary
    assert changes(finding) == ["optimizer.lr=0.001"]


def test_ranks_without_a_record_lower_the_confidence(tmp_path):
    finding = decide(run(tmp_path, {0: [non_finite(6)], 1: [non_finite(5)]}, world_size=4))
    assert finding.ranks == (1,)
    assert finding.confidence == 0.8
    assert "2 ranks left no record" in text_of(finding).summary


def test_a_gradient_that_broke_before_the_loss_names_the_parameter(tmp_path):
    gradient = {"parameter": "blocks.1.mlp.up.weight", "parameters_affected": 1, "parameters_seen": 40}
    events = {rank: [non_finite(5, "grad_norm", "inf", **gradient), non_finite(6)] for rank in range(2)}
    finding = decide(run(tmp_path, events))
    assert (finding.status, finding.ranks, finding.step) == ("confirmed", (), 5)
    assert "blocks.1.mlp.up.weight (1 of 40 parameters)" in text_of(finding).summary
    assert "do not show on which rank it began" in text_of(finding).summary


def test_a_norm_that_overflows_by_itself(tmp_path):
    finding = decide(run(tmp_path, {0: [non_finite(5, "grad_norm", "inf", parameters_seen=40, parameter=None)]}, 1))
    assert "sum of squares overflowed" in text_of(finding).summary
    assert finding.ranks == (0,)


def test_metrics_alone_give_the_step_but_no_rank(tmp_path):
    write(tmp_path, [*GOOD, {"step": 10, "loss": NAN, "grad_norm": NAN}])
    finding = decide(run(tmp_path))
    assert (finding.status, finding.ranks, finding.step) == ("confirmed", (), 10)
    assert "after step 4" in text_of(finding).summary
    assert (finding.evidence[0].file, finding.evidence[0].line) == ("metrics.jsonl", 5)


def test_finite_figures_rule_it_out(tmp_path):
    write(tmp_path, GOOD)
    finding = decide(run(tmp_path))
    assert (finding.status, text_of(finding).measured) == ("ruled_out", "0 of 4 records")


def test_without_a_record_it_stays_open(tmp_path):
    finding = decide(run(tmp_path))
    assert finding.status == "undecided" and text_of(finding).missing
    assert decide(foreign(tmp_path)).status == "undecided"


def test_an_overflow_under_loss_scaling_is_no_fault(tmp_path):
    scaled = {"precision": {"compute_dtype": "float16", "initial_loss_scale": 65536.0}}
    write(tmp_path, [{"step": 1, "loss": 3.0, "grad_norm": math.inf}, {"step": 2, "loss": 2.0, "grad_norm": 1.0}])
    assert decide(run(tmp_path, **scaled)).status == "ruled_out"
    write(tmp_path, [{"step": 1, "loss": NAN}, {"step": 2, "loss": 2.0}])
    passing = decide(run(tmp_path, {0: [non_finite(1)], 1: []}, **scaled))
    assert passing.confidence < 0.5
    write(tmp_path, [{"step": 1, "loss": 2.0}, {"step": 2, "loss": NAN}])
    lasting = decide(run(tmp_path, {0: [non_finite(2)], 1: []}, **scaled))
    assert lasting.confidence > 0.9
    assert "precision=bf16" in changes(lasting)


def test_remedies_fit_the_configuration(tmp_path):
    rising = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 9.0}, {"step": 3, "loss": NAN}]
    write(tmp_path, rising)
    finding = decide(run(tmp_path, train={"clip_norm": None}))
    assert changes(finding) == ["train.clip_norm=1.0", "optimizer.lr=0.001"]
    assert "had risen" in [remedy.why for remedy in text_of(finding).remedies][1]


def test_anomaly_detection_names_the_function(tmp_path):
    finding = decide(foreign(tmp_path, "", "Function 'SqrtBackward0' returned nan values in its 0th output."))
    assert (finding.status, finding.ranks) == ("confirmed", (1,))
    assert "SqrtBackward0" in text_of(finding).summary


def test_the_rank_that_checks_is_not_blamed(tmp_path):
    finding = decide(foreign(tmp_path, "Loss is nan, stopping training"))
    assert (finding.status, finding.ranks, finding.victims) == ("confirmed", (), (0,))


@pytest.mark.parametrize("text", ["could not find nano", "loss function missing", "gradient information is lost"])
def test_words_that_only_look_like_it(tmp_path, text):
    assert decide(foreign(tmp_path, text)).status == "undecided"


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("step 100 loss 2.31\nstep 101 loss nan\nstep 102 loss nan\n", 101),
        ("epoch 1 | iter 7 | loss: inf | lr 0.1\nepoch 1 | iter 8 | loss: nan | lr 0.1\n", 7),
        ("Steps:   0%|  | 7/600 [00:10<09:10,  1.1it/s, lr=1e-5, step_loss=nan]\n" * 2, 7),
        ("Steps:   0%|  | 7/600 [00:10<09:10,  1.1it/s, lr=1e-5, noise_step_loss=nan]\n" * 2, 7),
        ("{'loss': nan, 'grad_norm': nan, 'learning_rate': 0.1}\n", None),
        (" 4%|4   | 41/1000 [00:01<00:40, 25it/s, loss=NaN]\n", 41),
        ("[rank0]: step=3 train_loss=-inf\n", 3),
        ("Loss is nan, stopping training\n", None),
    ],
)
def test_a_log_that_prints_its_loss(tmp_path, text, step):
    (tmp_path / "train.log").write_text(text)
    finding = decide(gather(tmp_path, Limits()))
    assert (finding.status, finding.step, finding.ranks) == ("confirmed", step, ())
    assert "train.log:" in text_of(finding).summary


@pytest.mark.parametrize(
    ("every", "begins", "ranks"),
    [(1, (57, 58, 58), (1,)), (1, (57, 57, 57), ()), (1, (57, 57, 58), (1, 2)), (10, (57, 60, 60), ())],
    ids=["rank 1 alone", "all at once", "two of three", "the others print every tenth step"],
)
def test_a_rank_is_named_if_the_others_printed_a_finite_loss_in_that_step(tmp_path, every, begins, ranks):
    lines = [
        f"[rank{rank}] step {step} loss {'nan' if step >= begins[rank - 1] else '0.2'}"
        for step in range(50, 71)
        for rank in (1, 2, 3)
        if rank == 1 or step % every == 0
    ]
    (tmp_path / "train.log").write_text("\n".join(lines) + "\n")
    finding = decide(gather(tmp_path, Limits()))
    assert (finding.status, finding.step, finding.ranks) == ("confirmed", 57, ranks)


@pytest.mark.parametrize(
    "text",
    [
        "best loss inf\n",
        "val_loss=nan\n",
        "val_step_loss=nan\n",
        "val/loss: nan\n",
        "step 3 loss 2.1 info nan\n",
        "loss_scale: inf\n",
    ],
)
def test_a_log_that_prints_other_figures(tmp_path, text):
    (tmp_path / "train.log").write_text("CUDA error: unspecified launch failure\n" + text)
    assert decide(gather(tmp_path, Limits())).status == "undecided"


def test_a_damaged_file_is_a_line_under_coverage(tmp_path):
    (tmp_path / "status.json").write_text('{"state": "finished", "attempt": 0, "schema_version": 1}')
    (tmp_path / "metrics.jsonl").write_bytes(b"\x1f\x8b damaged")
    evidence = gather(tmp_path, Limits())
    assert decide(evidence).status == "undecided"
    assert "metrics.jsonl" in [problem.file for problem in evidence.problems]


def test_odd_events_are_passed_over(tmp_path):
    write(tmp_path, GOOD)
    events = {0: [{"name": "non_finite"}, non_finite("five"), non_finite(None, figure=3)], 1: []}
    assert decide(run(tmp_path, events)).status == "ruled_out"


LOG = "step 100 loss 2.31\nstep 101 loss nan\nstep 102 loss nan\n"
EXAMPLES = {"numeric.non_finite": Example(lambda: {"train.log": LOG})}


@pytest.mark.parametrize(
    "text",
    [
        "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 "
        "(message='found NaN in local grad norm for bucket #0 in backward pass before data-parallel communication')\n",
        "[rank3]: AssertionError: Rank 3: found NaN in local forward loss calculation. Device: 3\n",
    ],
)
def test_megatron_s_own_checks(tmp_path: Path, text: str) -> None:
    (tmp_path / "job.log").write_text("iteration 3\n" + text)
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks) == ("numeric.non_finite", (3,)), "before the ranks' gradients are summed"


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: found NaN in local grad norm for bucket #0 in backward pass\n",
        "RuntimeError: Unexpected result nan\n",
    ],
)
def test_the_error_that_names_no_rank_is_no_second_cause(tmp_path: Path, error: str) -> None:
    (tmp_path / "job.log").write_text("iteration 3\n" + error)
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["numeric.non_finite"]


def test_a_log_alone_gets_the_remedies_in_the_order_in_which_they_are_tried(tmp_path: Path) -> None:
    lines = [f"step {step} loss {'nan' if step > 20 else 2.0 - step / 100}" for step in range(30)]
    (tmp_path / "job.log").write_text("\n".join(lines) + "\n")
    (root,) = diagnose(tmp_path).root_causes
    changes = [remedy.change for remedy in text_of(root).remedies]
    assert "clip_grad_norm_" in changes[0] and "set_detect_anomaly" in changes[-1] and len(changes) == 4


@pytest.mark.parametrize(("after", "confirmed"), [(12, False), (2, True)])
def test_a_single_step_that_is_not_finite_is_no_news_where_enough_finite_ones_follow(
    tmp_path: Path, after: int, confirmed: bool
) -> None:
    steps = [f"step {n} loss {'nan' if n == 5 else 2.0}\n" for n in range(6 + after)]
    (tmp_path / "job.log").write_text("".join(steps))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == ["numeric.non_finite"] * confirmed


@pytest.mark.parametrize("trainer", ["hf", "titan", "megatron"])
def test_gradients_that_stay_non_finite(tmp_path: Path, trainer: str) -> None:
    text = log(trainer, [*falling(20), *[0.0] * 12], [*[1.0] * 20, *["nan"] * 12])
    assert causes(tmp_path, text) == ["numeric.non_finite"]
    assert causes(tmp_path, log(trainer, falling(32), [*[1.0] * 15, "inf", *[1.0] * 16])) == []


def test_zeros_in_place_of_a_loss_beside_norms_that_are_not_finite(tmp_path: Path) -> None:
    text = log("hf", [2.3, 2.2, 2.1, 0.0, 0.0, 0.0], [1.0, 1.1, "nan", "nan", "nan", "nan"])
    assert causes(tmp_path, text) == ["numeric.non_finite"]
    assert causes(tmp_path, log("hf", [2.3, 2.2, 0.0, 0.0], [1.0, "inf", "inf", 0.4])) == []


def test_the_first_state_of_a_redrawn_bar_without_a_loss_is_where_it_began(tmp_path: Path) -> None:
    bars = [
        f"Epoch 0: {n}%|##  | {n}/200 [00:10<00:50, 9it/s, v_num=0, train_loss={'nan' if n > 36 else 2.5}]"
        for n in range(1, 160)
    ]
    (tmp_path / "train.log").write_text("GPU available: True\n" + "\r".join(bars) + "\nSaved.\n")
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.step) == ("numeric.non_finite", 37)


@pytest.mark.parametrize(("rows", "apart", "confirmed"), [(3, 50, True), (3, 1, False), (2, 50, False), (4, 5, True)])
def test_few_rows_that_are_many_steps_apart(tmp_path: Path, rows: int, apart: int, confirmed: bool) -> None:
    lines = (TRAINERS["mmcv"](n * apart, 4.3 + n / 100, "nan") + "\n" for n in range(14, 14 + rows))
    assert causes(tmp_path, "".join(lines)) == (["numeric.non_finite"] if confirmed else [])


@pytest.mark.parametrize(
    ("bad", "ranks"),
    [
        ({1: 30}, (1,)),
        ({1: 30, 3: 30}, (1, 3)),
        (dict.fromkeys(range(4), 30), ()),  # A reduced loss.
        ({1: 30, 0: 50, 2: 50, 3: 50}, (1,)),
    ],
)
def test_a_rank_whose_own_loss_alone_is_not_finite_is_named(
    tmp_path: Path, bad: dict[int, int], ranks: tuple[int, ...]
) -> None:
    lost = {(n, rank) for rank, first in bad.items() for n in range(first, 60)}
    rows = ((n, rank, "nan" if (n, rank) in lost else f"{3 - n / 100:.4f}") for n in range(60) for rank in range(4))
    (tmp_path / "train.log").write_text("".join(f"[rank{rank}] step {n} loss {loss}\n" for n, rank, loss in rows))
    (root,) = diagnose(tmp_path).root_causes
    assert (root.cause, root.ranks, root.step) == ("numeric.non_finite", ranks, 30)
    assert ("printed a finite one in that step" in text_of(root).summary) is bool(ranks)


def test_a_loss_of_one_rank_that_is_printed_twice_shows_no_other_rank(tmp_path: Path) -> None:
    rows = (
        f"[rank0] step {n} loss {'nan' if n > 29 and (half or n > 30) else 2.5}" for n in range(60) for half in (0, 1)
    )
    (tmp_path / "train.log").write_text("\n".join(rows))
    assert "A log does not show" in text_of(diagnose(tmp_path).root_causes[0]).summary
