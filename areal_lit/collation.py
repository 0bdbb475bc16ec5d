"""Trajectories as flat numpy columns, checked; what ``batching.pack`` makes a batch of.

Shapes: n tokens of one sequence, T tokens and S sequences (segments) of the step, A atoms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from areal_lit.token_batch import CORE_COLUMNS, Dim
from areal_lit.types import LARGEST_REWARD, BoolArray, FloatArray, Group, IntArray, Trajectory

Column = NDArray[Any]


def declared_dims(algorithm_columns: Mapping[str, Dim]) -> dict[str, Dim]:
    """The core's columns and the algorithm's. Raises ValueError for a clash or an unknown dimension."""
    for name, dim in algorithm_columns.items():
        if name in CORE_COLUMNS:
            raise ValueError(
                f"the algorithm declares column {name!r}, which is one of the core's; "
                f"choose another name, or use it as it is (dimension {CORE_COLUMNS[name]})"
            )
        if dim not in ("T", "S", "A"):
            raise ValueError(f"column {name!r} has dimension {dim!r}; it must be T (tokens), S (segments) or A (atoms)")
    return {**CORE_COLUMNS, **algorithm_columns}


def in_atom_order(groups: Sequence[Group]) -> tuple[list[Trajectory], IntArray]:
    """All trajectories in order, members of one atom next to each other, and the atom of each, [S]."""
    trajectories: list[Trajectory] = []
    atom_S: list[int] = []
    count = 0
    for group in groups:
        members: dict[tuple[bool, int], list[Trajectory]] = {}
        for index, trajectory in enumerate(group.trajectories):
            is_shared = trajectory.atom >= 0
            members.setdefault((is_shared, trajectory.atom if is_shared else index), []).append(trajectory)
        for atom in members.values():
            trajectories += atom
            atom_S += [count] * len(atom)
            count += 1
    if not trajectories:
        raise ValueError(f"a batch needs at least one trajectory, got {len(groups)} groups without any")
    return trajectories, np.array(atom_S, dtype=np.int64)


def check_trajectories(trajectories: Sequence[Trajectory], *, needs_rewards: bool) -> None:
    """Raise ValueError for the first malformed trajectory, naming its prompt and sample."""
    someone_has_reward = any(t.reward is not None for t in trajectories)
    for t in trajectories:
        n = len(t.token_ids)
        is_to_be_scored = needs_rewards and (someone_has_reward or t.oldest_version is not None)
        lengths = {"loss_mask": len(t.loss_mask), "logprobs": len(t.logprobs), "versions": len(t.versions)}
        if t.turn_ids is not None:
            lengths["turn_ids"] = len(t.turn_ids)
        wrong = [f"{name} has {length}" for name, length in lengths.items() if length != n]
        if n == 0:
            problem = "has no tokens; a workflow returns None for an episode without any"
        elif wrong:
            problem = f"has {n} token_ids, but {' and '.join(wrong)}; all need one entry per token"
        elif not_credited := turn_problem(t):
            problem = not_credited
        elif not all(0 <= step.last_token < n and t.loss_mask[step.last_token] for step in t.step_scores):
            problem = "has step_scores at tokens that the policy did not choose; give each to its step's last token"
        elif t.loss_mask[0]:
            problem = "trains its first token, which nothing precedes; set loss_mask[0] False or begin with a prompt"
        elif is_to_be_scored and t.reward is None and not t.unscored:
            problem = "has neither a reward nor a reason in `unscored`, which is not zero; score it, or say why not"
        else:
            continue
        raise ValueError(f"{_name(t)} {problem}")


def turn_problem(trajectory: Trajectory) -> str:
    """Why the rewards of a trajectory's turns cannot be given to their turns, in words; empty if they can."""
    if not trajectory.turn_rewards:
        return ""
    turns = generated_turns(trajectory)
    if len(turns) == len(trajectory.turn_rewards):
        return ""
    return (
        f"has {len(trajectory.turn_rewards)} turn_rewards, but generated tokens in turns {turns}; give one reward per "
        "turn in the order of their ids, and leave out a turn in which nothing was generated"
    )


def generated_turns(trajectory: Trajectory) -> list[int]:
    """Ids of the turns in which the policy chose tokens, in order."""
    generated = trajectory.loss_mask.astype(bool)
    if trajectory.turn_ids is None:
        return [0] if generated.any() else []
    turns: list[int] = np.unique(trajectory.turn_ids[generated]).tolist()
    return turns


def branch_problem(episode: Sequence[Trajectory]) -> str:
    """Why an episode's trajectories cannot go on from each other as they say, in words; empty if they can."""
    known: set[int] = set()
    for trajectory in episode:
        if trajectory.parent_turn >= 0 and trajectory.parent_turn not in known:
            return (
                f"goes on from turn {trajectory.parent_turn}, but earlier trajectories of the episode have generated "
                f"turns {sorted(known)}; give every turn of the episode an id of its own, parents first"
            )
        known.update(generated_turns(trajectory))
    return ""


def core_columns(trajectories: Sequence[Trajectory], source_names: Sequence[str]) -> dict[str, Column]:
    """Every core column but ``atom`` that trajectories know."""
    length = np.array([len(t.token_ids) for t in trajectories], dtype=np.int64)
    segment = np.repeat(np.arange(len(length)), length)
    starts = np.cumsum(length) - length
    reward = np.array([0.0 if t.reward is None else t.reward for t in trajectories], dtype=np.float64)
    scored = np.array([not t.unscored and _is_trainable(t) for t in trajectories], dtype=bool)
    generated = np.concatenate([t.loss_mask for t in trajectories]).astype(bool)
    logprob = np.concatenate([t.logprobs for t in trajectories]).astype(np.float32)
    loss_mask = generated & scored[segment]
    broken = np.flatnonzero(loss_mask & ~np.isfinite(logprob))
    if broken.size:
        raise ValueError(
            f"{_name(trajectories[segment[broken[0]]])} has behaviour log-prob {logprob[broken[0]]} at token "
            f"{broken[0] - starts[segment[broken[0]]]}, which is trained; the inference backend must return finite ones"
        )
    turn = _turns(trajectories, generated)
    turn_reward, turn_scored = _turn_rewards(trajectories, turn, loss_mask)
    return {
        "token": np.concatenate([t.token_ids for t in trajectories]).astype(np.int64),
        "segment": segment,
        "position": np.arange(len(segment)) - starts[segment],
        "loss_mask": loss_mask,
        "logprob": logprob,
        "version": np.concatenate([t.versions for t in trajectories]).astype(np.int64),
        "turn": turn,
        "turn_reward": turn_reward,
        "turn_scored": turn_scored,
        "length": length,
        "group": np.array([t.prompt.prompt_id for t in trajectories], dtype=np.int64),
        "sample": np.array([t.sample for t in trajectories], dtype=np.int64),
        "reward": np.where(scored, reward, 0.0).astype(np.float32),
        "scored": scored,
        "parent_turn": np.array([t.parent_turn for t in trajectories], dtype=np.int64),
        "truncated": np.array([t.stop_reason == "length" for t in trajectories], dtype=bool),
        "temperature": np.array([t.temperature for t in trajectories], dtype=np.float32),
        "source": _sources(trajectories, source_names),
    }


def own_columns(
    trajectories: Sequence[Trajectory], dims: Mapping[str, Dim], filled: Mapping[str, Column]
) -> dict[str, Column]:
    """What ``Trajectory.columns`` hold, by declared column; per atom the first member's value counts.

    Raises:
        ValueError: for undeclared names, names the core fills, and columns that only some trajectories have.
    """
    result: dict[str, Column] = {}
    for name in {name: None for t in trajectories for name in t.columns}:
        if name not in dims or name in filled:
            reason = "filled by the core itself" if name in filled else "not declared"
            raise ValueError(
                f"trajectories bring a column {name!r}, which is {reason}; "
                f"declare it in the algorithm's `columns`, or leave it out in the workflow"
            )
        missing = [t for t in trajectories if name not in t.columns]
        if missing:
            raise ValueError(f"{_name(missing[0])} lacks the column {name!r} that others bring; give it to all or none")
        values = [np.asarray(t.columns[name]) for t in trajectories]
        if dims[name] == "T":
            _check_rows(name, trajectories, values)
            column = np.concatenate(values)
        else:
            column = np.stack(values)
        if dims[name] == "A":
            column = column[np.unique(filled["atom"], return_index=True)[1]]
        result[name] = column.astype(np.float32) if column.dtype == np.float64 else column
    return result


def _check_rows(name: str, trajectories: Sequence[Trajectory], values: Sequence[Column]) -> None:
    for trajectory, value in zip(trajectories, values, strict=True):
        if value.shape[:1] != (len(trajectory.token_ids),):
            raise ValueError(
                f"{_name(trajectory)} has {len(trajectory.token_ids)} tokens, but its column {name!r} of dimension T "
                f"has shape {value.shape}; give one row per token"
            )


def _turns(trajectories: Sequence[Trajectory], generated: BoolArray) -> IntArray:
    """Turn of each token, [T]; generated tokens of single-turn trajectories are turn 0."""
    turn = np.where(generated, 0, -1).astype(np.int64)
    end = 0
    for t in trajectories:
        start, end = end, end + len(t.token_ids)
        if t.turn_ids is not None:
            turn[start:end] = t.turn_ids
    return turn


def _turn_rewards(
    trajectories: Sequence[Trajectory], turn: IntArray, loss_mask: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """Each turn's or step's reward on its last generated token, 0 elsewhere, and where that is, [T] each."""
    reward, scored = np.zeros(len(turn), dtype=np.float32), np.zeros(len(turn), dtype=bool)
    end = 0
    for t in trajectories:
        start, end = end, end + len(t.token_ids)
        if not loss_mask[start:end].any():
            continue
        if t.turn_rewards:
            tokens = start + np.flatnonzero(loss_mask[start:end])
            from_end = np.unique(turn[tokens][::-1], return_index=True)[1]
            last = tokens[::-1][from_end]
            reward[last], scored[last] = t.turn_rewards, True
        for step in t.step_scores:
            reward[start + step.last_token] += step.value
            scored[start + step.last_token] = True
    return reward, scored


def _sources(trajectories: Sequence[Trajectory], source_names: Sequence[str]) -> IntArray:
    if not source_names:
        return np.zeros(len(trajectories), dtype=np.int64)
    index = {name: i for i, name in enumerate(source_names)}
    unknown = {t.prompt.source for t in trajectories} - set(index)
    if unknown:
        raise ValueError(f"prompts come from {sorted(unknown)}, not among the run's sources {list(source_names)}")
    return np.array([index[t.prompt.source] for t in trajectories], dtype=np.int64)


def _is_trainable(trajectory: Trajectory) -> bool:
    """Whether its rewards, which a workflow may have given itself, are numbers that training can be done with."""
    steps = (step.value for step in trajectory.step_scores)
    rewards = np.array([trajectory.reward or 0.0, *trajectory.turn_rewards, *steps], dtype=np.float64)
    return bool((np.abs(rewards) <= LARGEST_REWARD).all())


def _name(trajectory: Trajectory) -> str:
    return f"sample {trajectory.sample} of prompt {trajectory.prompt.prompt_id} ({trajectory.prompt.source})"
