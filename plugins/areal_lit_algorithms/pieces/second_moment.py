"""M2PO's whole-step selection: the tokens whose second moment of the off-policy log-ratio stays small (2510.01161).

Shapes: N tokens of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def within_second_moment(log_ratio_N: Tensor, threshold: float, *, keep_smallest: bool = True) -> Tensor:
    """True on the tokens that stay: the largest squared log-ratios go until the mean of the rest is below; bool [N].

    Tokens of equal square go together, so that the order of samples decides nothing.

    Args:
        keep_smallest: the smallest ones stay even where they are not below, so that something does.
    """
    moment_N = log_ratio_N.double().square()
    sorted_N = moment_N.sort().values
    mean_N = sorted_N.cumsum(0) / (sorted_N.new_ones(sorted_N.shape).cumsum(0))
    num_kept = int((mean_N < threshold).sum())
    if num_kept == len(sorted_N):
        return moment_N >= 0  # all of them
    is_kept_N = moment_N < sorted_N[num_kept]
    return is_kept_N if bool(is_kept_N.any()) or not keep_smallest else moment_N <= sorted_N[0]
