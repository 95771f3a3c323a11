"""Lines that trainers print of their steps."""

from collections.abc import Callable
from pathlib import Path

from diagnostics.diagnose import diagnose

Line = Callable[[int, object, object], str]
TRAINERS: dict[str, Line] = {
    "hf": lambda n, loss, norm: f"{{'loss': {loss}, 'grad_norm': {norm}, 'learning_rate': 2e-05, 'epoch': {n / 100}}}",
    "hf5": lambda n, loss, norm: f"{{'loss': '{loss}', 'grad_norm': '{norm}', 'epoch': '{n / 100}'}}",
    "megatron": lambda n, loss, norm: (
        f" iteration {n:8}/  500 | consumed samples: 9 | lm loss: {loss} | loss scale: 1.0 | grad norm: {norm} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |"
    ),
    "titan": lambda n, loss, norm: (
        f"[rank0]:[titan] 2025-11-22 10:20:30,1 - root - INFO - step: {n}  loss: {loss}  grad_norm: {norm}  tps: 7,200"
    ),
    "fairseq": lambda n, loss, norm: (
        f"| epoch 001:   {n} / 1891 loss={loss}, ppl=18.05, num_updates={n}, lr=8e-05, gnorm={norm}, loss_scale=2.000"
    ),
    "mmcv": lambda n, loss, norm: (
        f"mmseg - INFO - Iter [{n}/40000]\tlr: 8e-03, memory: 6, loss: {loss}, grad_norm: {norm}"
    ),
    "mmengine": lambda n, loss, norm: (
        f"INFO - Epoch(train)  [1][ {n}/196]  lr: 5.0e-03  memory: 5   loss_ce: 9.9  loss: {loss}  grad_norm: {norm}"
    ),
    "nanogpt": lambda n, loss, norm: f"iter {n}: loss {loss}, time 300ms",
    "lightning": lambda n, loss, norm: f"Epoch 0: {n}%|##  | {n}/100 [00:10<00:50, 9it/s, v_num=0, train_loss={loss}]",
}


def log(trainer: str, losses: list[object], norms: list[object]) -> str:
    return "".join(
        f"{TRAINERS[trainer](n, *figures)}\n" for n, figures in enumerate(zip(losses, norms, strict=True), 1)
    )


def falling(count: int) -> list[object]:
    return [round(2.0 - n * 0.005 + 0.01 * (n % 3), 4) for n in range(count)]


def causes(folder: Path, text: str) -> list[str]:
    (folder / "train.log").write_text(text)
    return [root.cause for root in diagnose(folder).root_causes]
