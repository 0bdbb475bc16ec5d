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

    def ways_on(self, batch: TokenBatch) -> Ways:
        """A step -> the first ones of other sequences in which it goes on; empty where conversations do not branch."""
        step_M, ways = self.step_M.tolist(), ways_on(batch, self.token_M)
        return {step_M[row]: [step_M[first] for first in firsts] for row, firsts in ways.items()}

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


def along_tree(x_N: Tensor, factor_N: Tensor, steps: Steps, ways: Ways, num_segments: int) -> Tensor:
    """``to_go`` where a step is followed by the mean of all that it goes on in, from leaves to root; float64 [N].

    The next step of its own sequence is one, the first of every sequence whose ``parent_turn`` it ends another. The
    mean, so that a turn trained once gets what its copies get on average where every branch is a sequence with a copy.
    Sequences of equal depth are taken at once.
    """
    if not ways:
        return to_go(x_N, factor_N, steps.segment_N)
    depth_N = steps.segment_N.new_tensor(depths(ways, steps.segment_N, num_segments))[steps.segment_N]
    num_ways_N = (~steps.is_last_N).double()
    steps_at = defaultdict(list)
    for step, firsts in ways.items():
        num_ways_N[step] += len(firsts)
        steps_at[int(depth_N[step])].append(step)
    share_N, x_N = factor_N / num_ways_N.clamp(min=1), x_N.double().clone()
    result_N = x_N.clone()
    for depth in reversed(range(int(depth_N.max()) + 1)):
        for step in steps_at[depth]:
            x_N[step] += share_N[step] * result_N[ways[step]].sum()
        here = (depth_N == depth).nonzero()[:, 0]
        result_N[here] = to_go(x_N[here], share_N[here], steps.segment_N[here])
    return result_N


def gae(
    batch: TokenBatch, reward_T: Tensor, *, gamma: float, lam: float | LengthLambda, level: StepLevel = "token"
) -> Tensor:
    """Generalised advantages, 0 outside the loss mask; float64 [T].

    A step's reward is the sum over its tokens, its value that of its first token, and its advantage is given to all of
    them. A truncated sequence goes on with ``final_value``, the value after its last token; a finished one is worth
    nothing beyond its rewards. Where a conversation branches, what follows is the mean of its ways on (``along_tree``).

    Args:
        batch: with the columns ``value`` and ``final_value``.
        reward_T: reward of each token.
        gamma: discount per step.
        lam: 1 is the discounted return less the value, 0 the error of one step; or a function of a length in steps.
    """
    steps = Steps.of(batch, level)
    ways = steps.ways_on(batch)
    value_N, is_last_N = steps.firsts(batch["value"]), steps.is_last_N
    after_S = batch["final_value"].double().where(batch["truncated"], 0.0)
    following_N = value_N.roll(-1).where(~is_last_N, after_S[steps.segment_N])
    for step, firsts in ways.items():
        following_N[step] = value_N[firsts if is_last_N[step] else [step + 1, *firsts]].mean()
    error_N = steps.sums(reward_T) + gamma * following_N - value_N
    lam_N = lam(steps.counts_N) if isinstance(lam, LengthLambda) else error_N.new_full(error_N.shape, lam)
    return steps.to_tokens(along_tree(error_N, gamma * lam_N, steps, ways, batch.num_segments), batch.num_tokens)


def reward_to_go(batch: TokenBatch, reward_T: Tensor, *, gamma: float = 1.0, turn_discount: float = 1.0) -> Tensor:
    """What is still to come from each loss token on, along the tree of a conversation, 0 elsewhere; float64 [T].

    That is ``gae`` without values and with lambda 1.

    Args:
        gamma: discount per loss token.
        turn_discount: discount per turn, in the order in which turns follow each other in the conversation.
    """
    steps = Steps.of(batch, "token")
    turn_N = batch["turn"][steps.first_N]
    ends_turn_N = (steps.is_last_N | (turn_N.roll(-1) != turn_N)).double()
    factor_N = gamma * (1 + (turn_discount - 1) * ends_turn_N)
    return_N = along_tree(steps.sums(reward_T), factor_N, steps, steps.ways_on(batch), batch.num_segments)
    return steps.to_tokens(return_N, batch.num_tokens)


def at_last_token(x_S: Tensor, batch: TokenBatch) -> Tensor:
    """Each segment's value on its last loss token, 0 elsewhere; [T]."""
    steps = Steps.of(batch, "token")
    last_K, segment_K = steps.token_M[steps.is_last_N], steps.segment_N[steps.is_last_N]
    return x_S.new_zeros(batch.num_tokens).index_copy(0, last_K, x_S[segment_K])
