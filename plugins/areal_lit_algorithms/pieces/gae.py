"""From rewards and values to advantages, over loss tokens or over turns (arXiv 1506.02438).

Shapes: T packed tokens, S segments, M loss tokens, N steps: loss tokens or turns, in order within each segment. Tokens
outside the loss mask use no step. Inside everything is float64.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from areal_lit_algorithms.pieces.branches import Ways, depths, ways_on

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.token_batch import TokenBatch

StepLevel = Literal["token", "turn"]


@dataclass(frozen=True, kw_only=True)
class LengthLambda:
    """GAE's lambda as a function of a sequence's length L in steps. Give one of the two.

    Args:
        alpha: ``max(0, 1 - 1 / (alpha L))``: credit reaches as far as the sequence is long (VAPO, arXiv 2504.05118,
            which takes 0.05).
        q: ``q ** (1 / (L - 1))``: the first step gets the share ``q`` of the last one's error.
    """

    alpha: float | None = None
    q: float | None = None

    def __post_init__(self) -> None:
        if (self.alpha is None) == (self.q is None):
            raise ValueError(f"lam takes alpha or q, got alpha {self.alpha} and q {self.q}")
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"alpha must be > 0, got {self.alpha}")
        if self.q is not None and not 0 < self.q <= 1:
            raise ValueError(f"q must be in (0, 1], got {self.q}")

    def __call__(self, length: Tensor) -> Tensor:
        """Lambda for each length, float64."""
        if self.alpha is not None:
            return (1 - 1 / (self.alpha * length.double())).clamp(min=0)
        assert self.q is not None
        return self.q ** (1 / (length.double() - 1).clamp(min=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of a batch's segments, and how they lie on its tokens.

    Args:
        token_M: index of each loss token.
        step_M: the step it belongs to.
        first_N: index of each step's first loss token.
        segment_N: the segment of each step, non-decreasing.
    """

    token_M: Tensor
    step_M: Tensor
    first_N: Tensor
    segment_N: Tensor

    @classmethod
    def of(cls, batch: TokenBatch, level: StepLevel) -> Steps:
        """Every loss token a step, or every turn; turns are in the order of their first loss tokens."""
        token_M = batch["loss_mask"].nonzero()[:, 0]
        segment_M = batch["segment"][token_M]
        step_M = token_M.new_ones(len(token_M)).cumsum(0) - 1
        first_N = token_M
        if level == "turn" and len(token_M):
            turn_M = batch["turn"][token_M] - batch["turn"].min()
            key_M = segment_M * (turn_M.max() + 1) + turn_M
            named_M = key_M.unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
            begin = step_M.new_full((int(named_M.max()) + 1,), len(token_M)).scatter_reduce(0, named_M, step_M, "amin")
            order = begin.argsort()
            step_M = order.argsort()[named_M]
            first_N = token_M[begin[order]]
        return cls(token_M=token_M, step_M=step_M, first_N=first_N, segment_N=batch["segment"][first_N])

    @property
    def is_last_N(self) -> Tensor:
        """Whether a step is its segment's last, bool [N]."""
        is_last_N = self.segment_N >= 0
        is_last_N[:-1] = self.segment_N[1:] != self.segment_N[:-1]
        return is_last_N

    def sums(self, x_T: Tensor) -> Tensor:
        """The sum over each step's loss tokens, float64 [N]."""
        x_M = x_T[self.token_M].double()
        return x_M.new_zeros(len(self.first_N)).index_add(0, self.step_M, x_M)

    def firsts(self, x_T: Tensor) -> Tensor:
        """The value at each step's first loss token, float64 [N]."""
        return x_T[self.first_N].double()

    @property
    def counts_N(self) -> Tensor:
        """How many steps the segment of each step has, int64 [N]."""
        return self.segment_N.bincount()[self.segment_N]

    def to_tokens(self, x_N: Tensor, num_tokens: int) -> Tensor:
        """Each loss token's value of its step, 0 elsewhere; [T]."""
        return x_N.new_zeros(num_tokens).index_copy(0, self.token_M, x_N[self.step_M])


def to_go(x_N: Tensor, factor_N: Tensor, segment_N: Tensor) -> Tensor:
    """``y[n] = x[n] + factor[n] y[n + 1]`` within each segment, whose last step has no next; float64 [N].

    One pass per position, for all segments at once.
    """
    if not len(x_N):
        return x_N.double()
    counts_S = segment_N.bincount()
    place_N = segment_N.new_ones(len(x_N)).cumsum(0) - 1
    ordinal_N = place_N - (counts_S.cumsum(0) - counts_S)[segment_N]
    at_ordinal = ordinal_N.argsort(stable=True).numpy()
    bounds = ordinal_N.bincount().cumsum(0).tolist()
    result_N, factors = x_N.double().clone(), factor_N.double().numpy()
    y = result_N.numpy()
    for begin, end in reversed(list(pairwise(bounds))):
        rows = at_ordinal[begin:end]
        y[rows - 1] += factors[rows - 1] * y[rows]
    return result_N


def gae(
    batch: TokenBatch, reward_T: Tensor, *, gamma: float, lam: float | LengthLambda, level: StepLevel = "token"
) -> Tensor:
    """Generalised advantages, 0 outside the loss mask; float64 [T].

    A step's reward is the sum over its tokens, its value that of its first token, and its advantage is given to all of
    them. A truncated sequence goes on with ``final_value``, the value after its last token; a finished one is worth
    nothing beyond its rewards.

    Args:
        batch: with the columns ``value`` and ``final_value``.
        reward_T: reward of each token.
        gamma: discount per step.
        lam: 1 is the discounted return less the value, 0 the error of one step; or a function of a length in steps.
    """
    steps = Steps.of(batch, level)
    value_N, is_last_N = steps.firsts(batch["value"]), steps.is_last_N
    after_S = batch["final_value"].double().where(batch["truncated"], 0.0)
    following_N = value_N.roll(-1).where(~is_last_N, after_S[steps.segment_N])
    error_N = steps.sums(reward_T) + gamma * following_N - value_N
    lam_N = lam(steps.counts_N) if isinstance(lam, LengthLambda) else error_N.new_full(error_N.shape, lam)
    return steps.to_tokens(to_go(error_N, gamma * lam_N, steps.segment_N), batch.num_tokens)


def reward_to_go(batch: TokenBatch, reward_T: Tensor, *, gamma: float = 1.0, turn_discount: float = 1.0) -> Tensor:
    """What is still to come from each loss token on, 0 outside the loss mask; float64 [T].

    That is ``gae`` without values, with lambda 1, and along the tree of a conversation: a turn is followed by the mean
    of all that it goes on in, the rest of its own sequence and every sequence whose ``parent_turn`` it is. The mean, so
    that a turn trained once gets what its copies get on average where every branch is a sequence with a copy.

    Args:
        gamma: discount per loss token.
        turn_discount: discount per turn, in the order in which turns follow each other in the conversation.
    """
    steps = Steps.of(batch, "token")
    turn_N = batch["turn"][steps.first_N]
    turns_N = (turn_N.roll(-1) != turn_N).double()  # 1 where the next token is another turn's
    factor_N = gamma * (1 + (turn_discount - 1) * turns_N)
    reward_N, ways = reward_T[steps.token_M].double(), ways_on(batch, steps.token_M)
    if not ways:
        return steps.to_tokens(to_go(reward_N, factor_N, steps.segment_N), batch.num_tokens)
    depth_N = steps.segment_N.new_tensor(depths(ways, steps.segment_N, batch.num_segments))[steps.segment_N]
    return_N = _along_tree(reward_N, factor_N, gamma * turn_discount, steps, ways, depth_N)
    return steps.to_tokens(return_N, batch.num_tokens)


def _along_tree(
    x_N: Tensor, factor_N: Tensor, branch_factor: float, steps: Steps, ways: Ways, depth_N: Tensor
) -> Tensor:
    """``to_go`` from the leaves to the root, sequences of equal depth at once; float64 [N]."""
    num_ways_N = (~steps.is_last_N).double()
    rows_at = defaultdict(list)
    for row, firsts in ways.items():
        num_ways_N[row] += len(firsts)
        rows_at[int(depth_N[row])].append(row)
    num_ways_N.clamp_(min=1)
    factor_N, x_N, result_N = factor_N / num_ways_N, x_N.clone(), x_N.clone()
    for depth in reversed(range(int(depth_N.max()) + 1)):
        for row in rows_at[depth]:
            x_N[row] += branch_factor / num_ways_N[row] * result_N[ways[row]].sum()
        here = (depth_N == depth).nonzero()[:, 0]
        result_N[here] = to_go(x_N[here], factor_N[here], steps.segment_N[here])
    return result_N


def at_last_token(x_S: Tensor, batch: TokenBatch) -> Tensor:
    """Each segment's value on its last loss token, 0 elsewhere; [T]."""
    steps = Steps.of(batch, "token")
    last_K, segment_K = steps.token_M[steps.is_last_N], steps.segment_N[steps.is_last_N]
    return x_S.new_zeros(batch.num_tokens).index_copy(0, last_K, x_S[segment_K])
