"""Invariant: pieces cover every element once, whatever the memory layout, with its index."""

import hypothesis
import hypothesis.strategies as st
import torch

from stochbatch.optim import pieces as module
from stochbatch.optim.pieces import ElementIndex, pieces

SHAPES = st.lists(st.integers(0, 9), max_size=4)


@hypothesis.settings(
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(SHAPES, st.integers(0, 7), st.randoms(use_true_random=False))
def test_every_element_once_under_its_own_index(
    monkeypatch, shape: list[int], bits: int, chance
) -> None:
    monkeypatch.setattr(module, "PIECE_BITS", bits)
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    order = list(range(len(shape)))
    chance.shuffle(order)
    inverse = [order.index(axis) for axis in range(len(shape))]
    scrambled = whole.permute(order).contiguous().permute(inverse)
    seen = torch.zeros(whole.numel(), dtype=torch.int64)
    index = ElementIndex(torch.device("cpu"))
    for piece in pieces([scrambled, whole]):
        low = index.low(piece)
        for tensor in piece.tensors:
            assert torch.equal(tensor.to(torch.int32), low.expand(tensor.shape))
        assert index.block(piece) == 0
        seen.index_add_(0, low.flatten().long(), torch.ones(low.numel(), dtype=torch.int64))
    assert (seen == 1).all()


def test_a_piece_is_bounded() -> None:
    sizes = [p.tensors[0].numel() for p in pieces([torch.zeros(3000, 1000)])]
    assert max(sizes) <= 1 << module.PIECE_BITS
    assert sum(sizes) == 3_000_000


def test_rows_larger_than_a_piece_come_one_by_one() -> None:
    length = (1 << module.PIECE_BITS) + 1
    tensor = torch.zeros(3, length, 2)[:, :, 0]
    assert [tuple(p.tensors[0].shape) for p in pieces([tensor])] == [(1, length)] * 3


def test_a_block_boundary_inside_a_piece_is_seen() -> None:
    piece = module.Piece(2**32 - 2, (3, 1), (torch.zeros(2, 3),))
    index = ElementIndex(torch.device("cpu"))
    assert torch.equal(index.block(piece), torch.tensor([[0, 0, 1], [1, 1, 1]]))
    assert index.low(piece).tolist() == [[-2, -1, 0], [1, 2, 3]]
