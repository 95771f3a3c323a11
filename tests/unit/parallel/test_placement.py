"""Pieces of plain tensors; those of shards are put together by the layouts of tests/dist/test_parallel_layouts.py."""

import torch

from dtk.parallel.placement import cut_shape, is_replicated_over, local_piece, replica


def test_a_plain_tensor_is_the_whole() -> None:
    tensor = torch.arange(6.0).view(2, 3).requires_grad_()
    local, piece = local_piece(tensor)
    assert torch.equal(local, tensor) and not local.requires_grad
    assert (piece.offset, piece.size) == ((0, 0), (2, 3))
    assert torch.equal(tensor[piece.box], tensor)
    assert (replica(tensor), is_replicated_over(tensor, "tp")) == ((0, 1), True)
    assert cut_shape(tensor) == (2, 3)
