"""`trainer_state.json` as transformers writes it, and what follows from its steps."""

import json
from pathlib import Path

import pytest

from diagnostics.diagnose import diagnose
from diagnostics.evidence.job.gather import gather
from diagnostics.evidence.limits import Limits

NAN = float("nan")


def state(losses: list[float], norms: list[float | None] | None = None) -> bytes:
    """The keys of TrainerState, sorted as `save_to_json` sorts them."""
    history: list[dict[str, object]] = []
    for n, loss in enumerate(losses, 1):
        norm = norms[n - 1] if norms else 1.0
        entry = {"epoch": n / 100, "learning_rate": 1e-4, "loss": loss, "step": 10 * n}
        history.append(entry if norm is None else {**entry, "grad_norm": norm})
    history.insert(len(history) // 2, {"epoch": 0.5, "eval_loss": 2.0, "eval_runtime": 3.1, "step": 50})
    history.append(
        {"epoch": 1.0, "step": 10 * len(losses), "total_flos": 1e15, "train_loss": 1.5, "train_runtime": 9.0}
    )
    own = {
        "best_metric": None,
        "epoch": 1.0,
        "global_step": 10 * len(losses),
        "is_hyper_param_search": False,
        "is_local_process_zero": True,
        "is_world_process_zero": True,
        "log_history": history,
        "max_steps": 900,
    }
    return json.dumps(own, indent=2, sort_keys=True).encode()  # fmt: skip


def test_steps_losses_and_norms_are_those_of_training(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_bytes(state([3.0 - 0.01 * n for n in range(40)], [None] * 20 + [2.5] * 20))
    (fact,) = gather(tmp_path, Limits()).facts
    (series,) = fact.fields["steps"].series.values()
    assert fact.kind == "trainer_steps" and len(series.loss) == 40
    assert (series.step[0], series.loss[0], series.printed[0]) == (10.0, 3.0, 1)
    assert (series.norm[-1], series.printed[-1], series.lines[-1]) == (2.5, 3, 41)  # An evaluation lies between.


@pytest.mark.parametrize(
    ("losses", "norms", "cause"),
    [
        ([2.0 - 0.005 * n for n in range(40)] + [7.5] * 20, [1.0] * 40 + [40.0] * 20, "numeric.spike"),
        ([2.0] * 10 + [NAN] * 20, [1.0] * 30, "numeric.non_finite"),
    ],
)
def test_the_causes_of_numerics_are_decided_from_it(
    tmp_path: Path, losses: list[float], norms: list[float | None], cause: str
) -> None:
    (tmp_path / "trainer_state.json").write_bytes(state(losses, norms))
    assert [root.cause for root in diagnose(tmp_path).root_causes] == [cause]


HONEST = state([2.0 - 0.005 * n for n in range(20)])
DAMAGED = HONEST[:-40]
