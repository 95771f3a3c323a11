"""Built-in callbacks: weight averaging, the best checkpoint, samples of a language model, norms per block."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from diagnostics.contract.artifacts import write_json
from dtk.data.tokenizer import Tokenizer, build_tokenizer
from dtk.errors import Errors
from dtk.parallel.blocks import named_blocks
from dtk.parallel.placement import local_piece
from dtk.parallel.regions import communication
from dtk.tasks.cross_entropy import logits_of
from dtk.train.callbacks import Best, Callback, Training
from dtk.train.progress import print_line

_errors = Errors(__file__)


class EMA(Callback):
    """Keeps an exponential moving average of the weights, corrected for its bias towards zero (as Adam's moments are).

    Each rank averages its own shards, so nothing is communicated; checkpoints keep the averages for any layout.

    Args:
        decay: weight of the past in each step, below 1.
        evaluate: evaluate the averages instead of the weights.
        at_end: replace the weights by the averages when training is finished, so that the averages are exported. The
            last checkpoint has both.
    """

    def __init__(self, decay: float = 0.999, evaluate: bool = True, at_end: bool = True) -> None:
        _errors.refuse({"decay": not 0 <= decay < 1}, decay=decay)
        self.decay, self.evaluate, self.use_at_end = decay, evaluate, at_end
        self.sums: dict[str, Tensor] = {}
        """Sum of the values of each parameter, weighted by `decay`, by parameter name."""
        self.steps = torch.zeros(())
        self.weights: dict[str, Tensor] = {}
        """The original weights while the model holds the averages."""

    def tensors(self, training: Training) -> dict[str, Tensor]:
        """Return the sums, which are laid out as the parameters are, and the number of steps that they contain."""
        if not self.sums:
            trained = ((name, value) for name, value in training.model.named_parameters() if value.requires_grad)
            self.sums = {name: torch.zeros_like(value, requires_grad=False) for name, value in trained}
        return {**self.sums, "steps": self.steps}

    @torch.no_grad()
    def after_step(self, training: Training, step: int, record: Mapping[str, Any] | None) -> None:
        """Add the weights after this step to the sums."""
        self.tensors(training)
        self.steps += 1
        for name, value in training.model.named_parameters():
            if name in self.sums:
                local_piece(self.sums[name])[0].lerp_(local_piece(value)[0], 1 - self.decay)

    def before_evaluation(self, training: Training, step: int) -> None:
        """Replace the weights by the averages."""
        if self.evaluate:
            self._exchange(training)

    def after_evaluation(self, training: Training, step: int, figures: Mapping[str, float]) -> None:
        """Restore the weights."""
        with torch.no_grad():
            for name, value in training.model.named_parameters():
                if name in self.weights:
                    local_piece(value)[0].copy_(self.weights[name])
        self.weights = {}

    def at_end(self, training: Training) -> None:
        """Replace the weights by the averages for good if `at_end` is set."""
        if self.use_at_end:
            self._exchange(training)

    @torch.no_grad()
    def _exchange(self, training: Training) -> None:
        for name, value in training.model.named_parameters():
            if self.steps and name in self.sums:
                local = local_piece(value)[0]
                self.weights[name] = local.clone()
                local.copy_(local_piece(self.sums[name])[0] / (1 - self.decay ** float(self.steps)))


class BestCheckpoint(Best):
    """Saves a checkpoint whenever an evaluation metric reaches a new best, and keeps the best one.

    It is kept besides the `checkpoint.keep` newest ones; `checkpoints/best.json` names it. Arguments: see `Best`.
    """

    step: int | None = None

    def before_step(self, training: Training, step: int) -> None:
        """Keep the best checkpoint of an earlier attempt."""
        training.keep_step = self.step

    def after_evaluation(self, training: Training, step: int, figures: Mapping[str, float]) -> None:
        """Request a checkpoint if this evaluation is the best so far."""
        if self.improved(figures):
            self.step = training.keep_step = step

    def after_checkpoint(self, training: Training, step: int) -> None:
        """Write best.json if this checkpoint is the best one."""
        if step == self.step and training.context.rank == 0:
            about = {"step": step, "metric": self.metric, "value": self.sign * self.best}
            write_json(training.recorder.paths.checkpoints / "best.json", about)

    def state(self) -> dict[str, Any]:
        """Return the best value and its step."""
        return {**super().state(), "step": self.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value and its step."""
        super().restore(state)
        self.step = state["step"]


class Samples(Callback):
    """Generates text with a language model after each evaluation; prints and records it in metrics.jsonl as `samples`.

    All ranks compute the same tokens, so it works with every strategy whose forward returns whole logits.

    Args:
        prompts: texts to continue.
        tokens: number of tokens generated per prompt.
        temperature: 0 selects the most likely token; otherwise tokens are sampled, seeded by run and step.
    """

    def __init__(self, prompts: Sequence[str] = ("The ",), tokens: int = 40, temperature: float = 0.0) -> None:
        wrong = not prompts or not all(prompts) or tokens < 1 or temperature < 0
        _errors.refuse({"samples": wrong}, prompts=str(list(prompts)), tokens=tokens, temperature=temperature)
        self.prompts, self.tokens, self.temperature = list(prompts), tokens, temperature

    @torch.no_grad()
    def after_evaluation(self, training: Training, step: int, figures: Mapping[str, float]) -> None:
        """Record a continuation of each prompt; DtkError without a tokenizer, or if the logits are split."""
        config, mesh = training.config, training.context.mesh
        rules = {"cut": max(mesh.tp, mesh.pp, mesh.cp) > 1, "no_tokenizer": not hasattr(config.data, "tokenizer")}
        _errors.refuse(rules, data=config.data.name)
        tokenizer = build_tokenizer(config.data.tokenizer)
        training.model.eval()
        texts = [self._continued(training, step, tokenizer, prompt) for prompt in self.prompts]
        training.model.train()
        training.strategy.release(training.model)
        training.log(step, samples=texts)
        if training.context.rank == 0:
            for text in texts:
                print_line(f"sample at step {step}: {text!r}")

    def _continued(self, training: Training, step: int, tokenizer: Tokenizer, prompt: str) -> str:
        config, device = training.config, training.context.device
        longest = min(config.data.sequence_length, config.model.context_length)
        generator = torch.Generator().manual_seed(config.seed + step)
        ids = [int(token) for token in tokenizer.encode(prompt.encode())]
        for _ in range(self.tokens):
            output = training.model(torch.tensor([ids[-longest:]], device=device))
            last = logits_of(output)[0, -1, : tokenizer.vocab_size].float().cpu()
            if self.temperature:
                ids.append(int(torch.multinomial((last / self.temperature).softmax(0), 1, generator=generator)))
            else:
                ids.append(int(last.argmax()))
        return tokenizer.decode(ids)


class BlockNorms(Callback):
    """Records the gradient norm and the weight norm of each block in the steps that log.

    metrics.jsonl: `grad_norm/<block>`, `weight_norm/<block>`, over all ranks; each costs a few collectives of 4 bytes.
    """

    def before_update(self, training: Training, step: int) -> None:
        """Compute and record the norms; DtkError if the gradients were freed in backward."""
        _errors.refuse({"in_backward": training.config.optimizer.in_backward})
        if step % training.config.train.log_every:
            return
        figures = {}
        for name, block in named_blocks(training.model):
            parameters = list(block.parameters())
            figures[f"grad_norm/{name}"] = float(training.strategy.gradient_norm(parameters))
            squares = [value.detach().float().square().sum() for value in parameters]
            with communication("all_reduce", 4 * len(squares), "dp_shard"):
                whole = [float(s.full_tensor() if isinstance(s, DTensor) else s) for s in squares]
            figures[f"weight_norm/{name}"] = sum(whole) ** 0.5
        training.log(step, **figures)
