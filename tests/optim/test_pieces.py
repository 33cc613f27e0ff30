"""Invariant: pieces cover every element once, whatever the memory layout, with its index."""

import hypothesis
import hypothesis.strategies as st
import torch

from stochbatch.optim import pieces as module
from stochbatch.optim.pieces import element_index, pieces

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
    for piece in pieces([scrambled, whole]):
        low = element_index(piece)
        for tensor in piece.tensors:
            assert torch.equal(tensor.to(torch.int32), low.expand(tensor.shape))
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


@st.composite
def windows(draw) -> tuple[module.Window, torch.Tensor]:
    """Return a block of a tensor, contiguous or channels last, whose values are its indices."""
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    spans = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        spans.append((start, draw(st.integers(1, size - start))))
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.int32).reshape(shape)
    part = whole[tuple(slice(start, start + size) for start, size in spans)].contiguous()
    if part.dim() == 4 and draw(st.booleans()):
        part = part.to(memory_format=torch.channels_last)
    starts = tuple(start for start, _ in spans)
    return module.Window(tuple(shape), starts, tuple(part.shape)), part


@hypothesis.settings(
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
@hypothesis.given(windows(), st.integers(0, 7))
def test_pieces_of_a_part_have_the_indices_of_the_whole(monkeypatch, drawn, bits: int) -> None:
    monkeypatch.setattr(module, "PIECE_BITS", bits)
    window, part = drawn
    seen = 0
    for piece in pieces([part], window):
        low = element_index(piece)
        assert torch.equal(piece.tensors[0], low.expand(piece.tensors[0].shape))
        seen += low.numel()
    assert seen == part.numel()
    assert window.offset == int(part.min())


@hypothesis.settings(deadline=None)
@hypothesis.given(windows())
def test_a_layout_of_a_part_has_the_indices_of_the_whole(drawn) -> None:
    window, part = drawn
    layout = module.memory_layout(part, window)
    if layout is None:
        assert len(window.cut) > 1 or not part.is_contiguous()
        return
    middle, inner, pitch, offset = layout
    expected = [
        offset + outer * pitch + at * middle + between
        for outer in range(part.numel() // (middle * inner))
        for between in range(middle)
        for at in range(inner)
    ]
    in_memory = part if part.is_contiguous() else part.movedim(1, -1)
    assert in_memory.flatten().tolist() == expected
