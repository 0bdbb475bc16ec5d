"""Trajectories to packed batches, and batches to mini-batches, shards and micro-batches. Pure.

Shapes: T packed tokens, S segments, A atoms. Atoms are never split, so neither are pairs or sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from areal_lit.collation import check_trajectories, core_columns, declared_dims, in_atom_order, own_columns
from areal_lit.packing import largest_differencing, pack_bins
from areal_lit.token_batch import Dim, TokenBatch, TokenOutputs
from areal_lit.types import Group


def pack(
    groups: Sequence[Group],
    *,
    algorithm_columns: Mapping[str, Dim] | None = None,
    source_names: Sequence[str] = (),
    needs_rewards: bool = True,
) -> TokenBatch:
    """One batch of everything in ``groups``, in order, with every core column that trajectories know.

    Members of one atom are moved next to each other. ``loss_mask`` is False throughout unscored samples: those
    with a reason in ``unscored`` or a reward that isn't finite. A sample that nobody was to score (offline data,
    rollouts whose rewards are not needed) counts as scored with reward 0. ``turn`` is 0 on the generated tokens of
    single-turn trajectories.

    Args:
        algorithm_columns: what the algorithm declares; ``Trajectory.columns`` may fill them.
        source_names: the run's sources; ``source`` indexes into it (0 when empty).
        needs_rewards: a rollout that has neither a reward nor a reason why is malformed.

    Raises:
        ValueError: for malformed trajectories, naming the prompt and the sample.
    """
    dims = declared_dims(algorithm_columns or {})
    trajectories, atom_S = in_atom_order(groups)
    check_trajectories(trajectories, needs_rewards=needs_rewards)
    filled = core_columns(trajectories, source_names)
    filled["atom"] = atom_S
    filled |= own_columns(trajectories, dims, filled)
    columns = {name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in filled.items()}
    return TokenBatch(columns=columns, dims=dims, num_atoms=int(atom_S[-1]) + 1)


def select_atoms(batch: TokenBatch, atoms_K: Tensor) -> TokenBatch:
    """The batch of these atoms only, in the order given, with segments and atoms renumbered from 0."""
    segments, tokens = _members(batch, atoms_K)
    rows = {"T": tokens, "S": segments, "A": atoms_K}
    columns = {name: column[rows[batch.dims[name]]] for name, column in batch.columns.items()}
    length = columns["length"]
    atom_sizes = torch.bincount(batch["atom"], minlength=batch.num_atoms)[atoms_K]
    columns["segment"] = torch.repeat_interleave(torch.arange(len(length)), length)
    columns["atom"] = torch.repeat_interleave(torch.arange(len(atoms_K)), atom_sizes)
    return replace(batch, columns=columns, num_atoms=len(atoms_K))


def split_minibatches(batch: TokenBatch, num: int, *, seed: int) -> list[TokenBatch]:
    """``num`` batches of whole atoms with nearly equal token counts, shuffled by ``seed``.

    Each keeps the order the batch had. The short batch at the end of the data may have fewer atoms: then one each.
    """
    if num < 1:
        raise ValueError(f"num_minibatches must be >= 1, got {num}")
    num = min(num, batch.num_atoms)
    if num == 1:
        return [batch]
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(batch.num_atoms)
    sizes = atom_tokens(batch).numpy()
    bins = largest_differencing(sizes[shuffled], num)
    picks = [torch.from_numpy(np.sort(shuffled[bins[i]])) for i in rng.permutation(num)]
    return [select_atoms(batch, pick) for pick in picks]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """Which atoms each shard works on, micro-batch by micro-batch.

    Args:
        microbatches: per shard as many index tensors as on every other shard; an empty one is fill.
        fill_atom: the shortest atom, which fill repeats with all weights 0.
    """

    microbatches: tuple[tuple[Tensor, ...], ...]
    fill_atom: int

    @property
    def num_microbatches(self) -> int:
        """Micro-batches per shard, fill included."""
        return len(self.microbatches[0])


def plan_shards(batch: TokenBatch, *, num_shards: int, max_tokens: int, packing: Literal["ffd", "kk"]) -> ShardPlan:
    """Atoms balanced over shards by tokens, then packed into micro-batches of at most ``max_tokens``.

    Raises:
        ValueError: for an atom longer than ``max_tokens``, naming the setting.
    """
    if num_shards < 1:
        raise ValueError(f"num_shards must be >= 1, got {num_shards}")
    sizes = atom_tokens(batch).numpy()
    longest = int(sizes.argmax())
    if sizes[longest] > max_tokens:
        what = "sequence" if int((batch["atom"] == longest).sum()) == 1 else "pair"
        raise ValueError(
            f"a {what} of {int(sizes[longest])} tokens does not fit max_tokens_per_microbatch={max_tokens} and is "
            f"never split; raise the strategy's max_tokens_per_microbatch or shorten prompts and completions"
        )
    plan = []
    for members in largest_differencing(sizes, num_shards):
        atoms = np.array(members, dtype=np.int64)
        bins = pack_bins(sizes[atoms], max_tokens, balanced=packing == "kk")
        plan.append([torch.from_numpy(np.sort(atoms[b])) for b in bins])
    count = max(len(shard_bins) for shard_bins in plan)
    fill = torch.empty(0, dtype=torch.int64)
    padded = tuple((*bins, *[fill] * (count - len(bins))) for bins in plan)
    return ShardPlan(microbatches=padded, fill_atom=int(sizes.argmin()))


def shard(batch: TokenBatch, plan: ShardPlan) -> list[list[TokenBatch]]:
    """The micro-batches of each shard. Fill has ``loss_mask`` False and every column named ``*_weight`` 0."""
    return [[_microbatch(batch, atoms, plan.fill_atom) for atoms in shard_plan] for shard_plan in plan.microbatches]


def unshard(batch: TokenBatch, plan: ShardPlan, outputs: Sequence[Sequence[TokenOutputs]]) -> TokenOutputs:
    """Outputs of ``shard(batch, plan)``'s micro-batches in the batch's order, fill left out.

    An output is None if it is None everywhere.
    """
    parts = []
    for shard_plan, shard_outputs in zip(plan.microbatches, outputs, strict=True):
        for atoms, output in zip(shard_plan, shard_outputs, strict=True):
            if len(atoms):
                parts.append((*_members(batch, atoms), output))

    def gathered(pick: Callable[[TokenOutputs], Tensor | None], dim: Dim, size: int) -> Tensor | None:
        given = [
            (segments if dim == "S" else tokens, value)
            for segments, tokens, output in parts
            if (value := pick(output)) is not None
        ]
        if not given:
            return None
        result = given[0][1].new_zeros((size, *given[0][1].shape[1:]))
        for rows, value in given:
            result[rows] = value
        return result

    return TokenOutputs(
        logprob_T=gathered(lambda o: o.logprob_T, "T", batch.num_tokens),
        entropy_T=gathered(lambda o: o.entropy_T, "T", batch.num_tokens),
        value_T=gathered(lambda o: o.value_T, "T", batch.num_tokens),
        final_value_S=gathered(lambda o: o.final_value_S, "S", batch.num_segments),
        topk_token_TK=gathered(lambda o: o.topk_token_TK, "T", batch.num_tokens),
        topk_logprob_TK=gathered(lambda o: o.topk_logprob_TK, "T", batch.num_tokens),
        divergence_T=gathered(lambda o: o.divergence_T, "T", batch.num_tokens),
    )


def atom_tokens(batch: TokenBatch) -> Tensor:
    """Tokens per atom, int64 [A]."""
    return batch.atom_sum(batch["length"])


def _microbatch(batch: TokenBatch, atoms: Tensor, fill_atom: int) -> TokenBatch:
    if len(atoms) == batch.num_atoms:
        return batch
    if len(atoms):
        return select_atoms(batch, atoms)
    fill = select_atoms(batch, torch.tensor([fill_atom]))
    silent = {name: torch.zeros_like(x) for name, x in fill.columns.items() if name.endswith("_weight")}
    return fill.with_columns(loss_mask=torch.zeros_like(fill["loss_mask"]), **silent)


def _members(batch: TokenBatch, atoms_K: Tensor) -> tuple[Tensor, Tensor]:
    """Segment and token indices of these atoms, in order."""
    atom_sizes = torch.bincount(batch["atom"], minlength=batch.num_atoms)
    segments = _ranges(atom_sizes, atoms_K)
    return segments, _ranges(batch["length"], segments)


def _ranges(sizes_N: Tensor, picks_K: Tensor) -> Tensor:
    """Row indices of the picked runs, where run n has ``sizes_N[n]`` consecutive rows."""
    counts = sizes_N[picks_K]
    first = (sizes_N.cumsum(0) - sizes_N)[picks_K]
    shift = first - (counts.cumsum(0) - counts)
    return torch.repeat_interleave(shift, counts) + torch.arange(int(counts.sum()))
