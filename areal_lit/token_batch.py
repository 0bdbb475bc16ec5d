"""The packed training batch: named columns of tokens, segments and atoms.

Shapes: T packed tokens, S segments (sequences), A atoms (what is never split). A column's first axis is
its declared dimension; further axes are its own. Torch is not imported here: tensors bring their methods.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from areal_lit.types import Metric, Reduction

Dim = Literal["T", "S", "A"]

CORE_COLUMNS: Mapping[str, Dim] = {
    "token": "T",  # int64 token ids
    "segment": "T",  # int64 segment of each token, non-decreasing
    "position": "T",  # int64, restarts at 0 in each segment
    "loss_mask": "T",  # bool: trained tokens; excludes dropped, unscored and filtered samples
    "logprob": "T",  # behaviour log-probs
    "version": "T",  # int64, -1 where not generated
    "turn": "T",  # int64, -1 outside turns
    "turn_reward": "T",  # reward of a turn, or of a step within one, on its last generated token, 0 elsewhere
    "turn_scored": "T",  # bool: the tokens on which such a reward stands
    "proximal": "T",  # recomputed log-probs of the policy at the start of the step
    "reference": "T",  # log-probs under the reference
    "teacher": "T",  # log-probs under the teacher
    "topk_token": "T",  # int64 [T, k], the teacher's likeliest tokens
    "topk_logprob": "T",  # [T, k], their log-probs under the teacher
    "value": "T",  # critic's value of the state in which token t was chosen
    "entropy": "T",
    "token_weight": "T",  # what weigh() turned the aggregation into
    "length": "S",  # int64 tokens per segment
    "atom": "S",  # int64 atom of each segment, non-decreasing
    "group": "S",  # int64 group id
    "sample": "S",  # int64 index within the group
    "reward": "S",  # raw reward; 0 where unscored (and then loss_mask is False)
    "scored": "S",  # bool
    "parent_turn": "S",  # int64 turn, of the same group and sample, that the segment goes on from; -1: the prompt
    "truncated": "S",  # bool, from the stop reason
    "temperature": "S",
    "final_value": "S",  # critic's value after the last token
    "source": "S",  # int64 index into the run's list of source names
    "segment_weight": "S",
    "atom_weight": "A",
}
"""Columns every batch may hold; an algorithm declares its own beside them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Named columns with declared dimensions, and scalars that travel with them.

    Args:
        columns: tensors by name; at least ``token``, ``segment``, ``length`` and ``atom``.
        dims: the dimension of every column that may occur. Setting an undeclared one is an error.
        scalars: numbers that vary from step to step and that ranks need (a KL weight, the step).
        num_atoms: A.
    """

    columns: Mapping[str, Tensor]
    dims: Mapping[str, Dim]
    num_atoms: int
    scalars: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return self.columns[name]
        except KeyError:
            known = "declared but not filled" if name in self.dims else "not declared"
            raise KeyError(
                f"column {name!r} is {known}; this batch holds {', '.join(sorted(self.columns))}. "
                f"Ask for model outputs in `needs`, declare your own columns in `columns`"
            ) from None

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    @property
    def num_tokens(self) -> int:
        return int(self.columns["token"].shape[0])

    @property
    def num_segments(self) -> int:
        return int(self.columns["length"].shape[0])

    def size(self, dim: Dim) -> int:
        """How many rows a column of this dimension has."""
        return {"T": self.num_tokens, "S": self.num_segments, "A": self.num_atoms}[dim]

    def with_columns(self, **columns: Tensor) -> TokenBatch:
        """A batch with these columns set. Raises ValueError for an undeclared name or a wrong length."""
        for name, column in columns.items():
            if name not in self.dims:
                raise ValueError(
                    f"column {name!r} is not declared; add it to the algorithm's `columns` "
                    f'with its dimension, as in columns = {{"{name}": "T"}}'
                )
            expected = self.size(self.dims[name])
            if column.shape[:1] != (expected,):
                raise ValueError(
                    f"column {name!r} has dimension {self.dims[name]} and needs {expected} rows, "
                    f"got shape {tuple(column.shape)}"
                )
        return replace(self, columns={**self.columns, **columns})

    def with_scalars(self, **scalars: float) -> TokenBatch:
        return replace(self, scalars={**self.scalars, **scalars})

    # --- per segment -----------------------------------------------------------------------------

    def segment_sum(self, x_T: Tensor) -> Tensor:
        """Sum of a per-token tensor over each segment, [S] (and x's further axes)."""
        zeros = x_T.new_zeros((self.num_segments, *x_T.shape[1:]))
        return zeros.index_add(0, self["segment"], x_T)

    def segment_mean(self, x_T: Tensor, mask_T: Tensor | None = None) -> Tensor:
        """Mean over each segment's loss tokens (or ``mask_T``), [S]; 0 where there are none."""
        mask_T = self["loss_mask"] if mask_T is None else mask_T
        total_S = self.segment_sum(x_T.where(mask_T, x_T.new_zeros(())))
        return total_S / self.segment_sum(mask_T.to(x_T.dtype)).clamp(min=1)

    def to_tokens(self, x_S: Tensor) -> Tensor:
        """Each token's value of a per-segment tensor, [T]."""
        return x_S[self["segment"]]

    @property
    def loss_tokens_S(self) -> Tensor:
        """Loss tokens of each segment, int64 [S]."""
        return self.segment_sum(self["loss_mask"].long())

    # --- per atom --------------------------------------------------------------------------------

    def atom_sum(self, x_S: Tensor) -> Tensor:
        """Sum of a per-segment tensor over each atom, [A]."""
        return x_S.new_zeros((self.num_atoms,)).index_add(0, self["atom"], x_S)

    # --- per group -------------------------------------------------------------------------------

    @property
    def group_index_S(self) -> Tensor:
        """Groups numbered densely from 0, int64 [S]; order carries no meaning."""
        inverse_S: Tensor = self["group"].unique(return_inverse=True)[1]  # type: ignore[no-untyped-call]
        return inverse_S

    # --- moving ----------------------------------------------------------------------------------

    def to(self, device: Any) -> TokenBatch:
        return replace(self, columns={k: v.to(device, non_blocking=True) for k, v in self.columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOutputs:
    """What a model says about a batch, aligned with its tokens: index t speaks of token t.

    All that speaks of a distribution is of the one at the batch's ``temperature``. A segment's first token has no
    predecessor: all of it is 0 there, and its ``loss_mask`` is False. ``topk_token_TK`` are the tokens that
    ``topk_logprob_TK`` is of; ``divergence_T`` is the sum of ``Algorithm.pointwise_divergence`` over the vocabulary.
    """

    logprob_T: Tensor | None = None
    entropy_T: Tensor | None = None
    value_T: Tensor | None = None
    final_value_S: Tensor | None = None
    topk_token_TK: Tensor | None = None
    topk_logprob_TK: Tensor | None = None
    divergence_T: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Unweighted loss values of one micro-batch; the core multiplies by the weights and sums.

    Args:
        values: [T], [S] or [A], as ``per`` says. Masked entries may hold anything: their weight is 0.
        weight: the weight column; by default ``token_weight``, ``segment_weight`` or ``atom_weight``.
    """

    values: Tensor
    per: Literal["token", "segment", "atom"] = "token"
    metrics: tuple[Metric, ...] = ()
    weight: str = ""

    def __post_init__(self) -> None:
        if self.weight and not self.weight.endswith("_weight"):
            raise ValueError(
                f"a weight column's name must end in _weight, as micro-batches that only fill up are silenced by it, "
                f"got {self.weight!r}"
            )

    @property
    def weight_column(self) -> str:
        return self.weight or f"{self.per}_weight"


Objective = Callable[[TokenOutputs, TokenBatch], Loss]

Divergence = Callable[["Tensor", "Tensor"], "Tensor"]
"""What each entry of a vocabulary adds to a divergence, from its finite log-probs under the policy and the teacher.

Elementwise, for tensors of any shape, and differentiable in the first."""


def weighted_sum(loss: Loss, batch: TokenBatch) -> Tensor:
    """sum(weight * value) over entries of non-zero weight; what strategies run backward on."""
    weight = batch[loss.weight_column]
    return (weight * loss.values.where(weight != 0, loss.values.new_zeros(()))).sum()


def masked_metric(name: str, x: Tensor, mask: Tensor, reduction: Reduction = "mean") -> Metric:
    """A metric over the entries where ``mask`` holds; exact to merge over micro-batches and ranks."""
    from areal_lit.types import Metric

    kept = x.detach()[mask].double()
    count = float(kept.numel())
    if reduction in ("mean", "sum"):
        return Metric(name=name, sum=float(kept.sum()), count=count, reduction=reduction)
    if not count:
        return Metric(
            name=name, sum=float("-inf") if reduction == "max" else float("inf"), count=0, reduction=reduction
        )
    return Metric(name=name, sum=float(getattr(kept, reduction)()), count=count, reduction=reduction)
