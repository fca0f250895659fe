"""Texts of like length together: the partition is the best there is, and no text notices."""

from __future__ import annotations

import itertools

import pytest
import torch
from batchline.handlers.lengths import by_length
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import Worker, request


def cost(groups: list[list[int]], lengths: list[int], pass_tokens: int) -> int:
    return sum(pass_tokens + len(group) * max(lengths[row] for row in group) for group in groups)


@given(st.lists(st.integers(1, 256), max_size=64), st.integers(0, 200))
def test_every_row_is_in_one_group_and_splitting_never_costs(lengths: list[int], pass_tokens: int) -> None:
    groups = by_length(lengths, pass_tokens)
    assert sorted(itertools.chain(*groups)) == list(range(len(lengths))) and all(groups)
    if lengths:
        assert cost(groups, lengths, pass_tokens) <= cost([list(range(len(lengths)))], lengths, pass_tokens)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 40))
def test_no_partition_is_cheaper(lengths: list[int], pass_tokens: int) -> None:
    """Against every assignment of the rows to groups."""
    found = cost(by_length(lengths, pass_tokens), lengths, pass_tokens)
    for labels in itertools.product(range(len(lengths)), repeat=len(lengths)):
        groups = [[row for row, label in enumerate(labels) if label == wanted] for wanted in set(labels)]
        assert found <= cost(groups, lengths, pass_tokens)


def test_one_long_text_does_not_lengthen_the_short_ones() -> None:
    assert by_length([5, 250, 6, 7], 32) == [[1], [3, 2, 0]]
    assert by_length([5, 9, 6, 7], 32) == [[1, 3, 2, 0]], "padding costs less than a pass"


@pytest.mark.parametrize("order", list(itertools.permutations([0, 1, 2, 3]))[::5])
def test_answers_come_in_the_order_of_the_requests(minilm: Worker, order: tuple[int, ...]) -> None:
    """Split into passes and all at once: the same embeddings, each its own request's."""
    texts = ["food", "A man is eating a piece of bread. " * 20, "The girl is carrying a baby.", "bread " * 200]
    sent = [request(texts[number].encode()) for number in order]
    calls: list[torch.Size] = []
    model, usual = minilm.handler.model, minilm.handler.pass_tokens
    minilm.handler.model = lambda *inputs: (calls.append(inputs[0].shape), model(*inputs))[1]
    try:
        split = [reply.json["embedding"] for reply in minilm.send(*sent)]
        passes = len(calls)
        minilm.handler.pass_tokens = 0
        together = [reply.json["embedding"] for reply in minilm.send(*sent)]
    finally:
        minilm.handler.model, minilm.handler.pass_tokens = model, usual
    assert passes > 1 and len(calls) == passes + 1
    torch.testing.assert_close(torch.tensor(split), torch.tensor(together), rtol=0, atol=1e-5)
