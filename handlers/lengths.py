"""Which rows of a padded batch go through the model together: padding is computed too, and so is every further pass."""

from __future__ import annotations

from collections.abc import Sequence


def by_length(lengths: Sequence[int], pass_tokens: int) -> list[list[int]]:
    """Row numbers in groups of like length, at the least cost of tokens computed, padding included, and passes.

    The rows are in order of length in the best partition, so it is found by looking, for every longest row of a group, at
    every row that the group could end with (O(n²), n rows).

    Args:
        lengths: tokens of each row.
        pass_tokens: how many tokens a pass of its own costs.

    Returns:
        The groups, longest first; one group where padding costs less than passes.
    """
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    if not order or len(order) * lengths[order[0]] - sum(lengths) <= pass_tokens:  # no split could win
        return [order] if order else []
    best, cut = [0.0], [0]  # of the first n rows
    for end in range(1, len(order) + 1):
        costs = [best[begin] + pass_tokens + (end - begin) * lengths[order[begin]] for begin in range(end)]
        begin = min(range(end), key=costs.__getitem__)
        best.append(costs[begin])
        cut.append(begin)
    groups, end = [], len(order)
    while end:
        groups.append(order[cut[end] : end])
        end = cut[end]
    return groups[::-1]
