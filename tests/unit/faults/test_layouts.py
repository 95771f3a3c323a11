"""Faults of stages, tensor-parallel ranks and experts, on the rank that has them."""

import torch

from dtk.parallel import collectives
from tests.unit.faults.conftest import Faulty


def test_a_stage_drops_the_last_micro_batch_of_one_step(faulty: Faulty) -> None:
    from dtk.train.loop import Loop

    loop = faulty("pipeline_mismatch", step=2)
    sizes: list[int] = []
    base = Loop._accumulate
    try:
        Loop._accumulate = lambda self, batches, factor: (sizes.append(len(batches)), base(self, batches, factor))[1]  # type: ignore[method-assign]
        assert loop.run()
    finally:
        Loop._accumulate = base  # type: ignore[method-assign]
    assert sizes == [2, 1, 2, 2]


def test_one_rank_reads_other_samples_from_its_step_on(faulty: Faulty) -> None:
    loop, honest = faulty("tp_divergence", step=2), faulty("tp_divergence", step=2, rank=1)
    for step, same in ((0, True), (1, False), (2, False)):
        mine, others = loop._batches(step), honest._batches(step)
        assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(mine, others, strict=True)) is same
        assert all(
            torch.equal(a.inputs.sort().values, b.inputs.sort().values) for a, b in zip(mine, others, strict=True)
        )


def test_logits_of_a_router_prefer_the_first_experts(faulty: Faulty) -> None:
    loop, logits = faulty("expert_imbalance", step=1), torch.randn(3, 5)
    tilted = loop._tilted(loop.parts.model, (), logits)
    assert (tilted - logits).argmax(-1).tolist() == [0, 0, 0] and tilted[0].argsort(descending=True)[0] == 0
    late = faulty("expert_imbalance", step=4)
    assert late._tilted(late.parts.model, (), logits) is logits


def test_slow_links_repeat_every_collective_of_tensor_parallelism(faulty: Faulty, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    calls: list[int] = []
    for name in ("all_gather_single", "reduce_scatter_single"):
        monkeypatch.setattr(collectives, name, lambda number: (calls.append(number), number)[1])
    assert faulty("tp_across_nodes").run()
    assert (collectives.all_gather_single(7), calls) == (7, [7, 7, 7])


def test_the_whole_model_is_gathered_from_the_step_on(faulty: Faulty) -> None:
    loop = faulty("full_gather", step=3)
    sizes: list[int] = []
    gather = loop._gather

    def look():  # type: ignore[no-untyped-def]
        whole = gather()
        sizes.append(whole.numel())
        return whole

    loop._gather = look
    assert loop.run() and sizes == [sum(p.numel() for p in loop.parts.model.parameters())] * 2


def test_logits_of_all_ranks_are_kept_from_the_step_on(faulty: Faulty) -> None:
    loop = faulty("gathered_logits", step=2)
    assert loop.run()
    assert len(loop.collected) == 3 * 2, "three steps of two micro-batches"
    assert all(copies[0].shape[-1] == 17 and not copies[0].requires_grad for copies in loop.collected)


def test_one_rank_evaluates_by_itself_once(faulty: Faulty) -> None:
    loop = faulty("rank0_evaluation", step=2)
    passes: list[int] = []
    loop.parts.model.register_forward_hook(lambda *_: passes.append(loop.state.step))
    assert loop.run()
    assert passes == [0, 0, 1, 1, 2, 2, 2, 3, 3]
