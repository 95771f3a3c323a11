"""Gathers that no rank needs, on one rank of one: what they copy, and when."""

from tests.unit.faults.conftest import Faulty


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
