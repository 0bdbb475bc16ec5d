"""The 200 ragged batches that every package computes on, from a seed; numpy only, so that any virtualenv can import it.

Shapes: B samples of a case, S tokens of its longest completion, D directions. Arrays [B, S] are of completions, without
prompts: index t speaks of token t. Log-probs, rewards and values are multiples of 1/1024, exact in float32, so that no
oracle differs by the rounding of its inputs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

SEED = 4
NUM_CASES = 200
LONGEST_TURN = {1: 12, 3: 3}
"""In tokens, by how many turns there may be."""
MAX_LENGTH = 14
"""No completion is longer, tool output included."""
MAX_STALENESS = 8
NUM_DIRECTIONS = 3
_GRID = 1024


@dataclass(frozen=True, kw_only=True)
class Case:
    """One optimizer step of data.

    Every fourth case has groups of four in order, for packages that find groups by stride; in the others groups have
    one to four members, shuffled. Every third has turns with tool output between them, half of those with turn rewards.

    Args:
        index: number of the case, 0 to 199.
        step: version of the proximal policy; the one being trained is ``step + 1``.
        group: [B].
        reward: of the whole sample, [B]. Some groups have equal ones.
        truncated: ended by the budget, [B].
        final_value: critic's value after the last token, [B]; also the score of a reward model.
        length: tokens with tool output and without padding, [B].
        mask: tokens that are trained, [B, S]. Some rows have none. Masked positions hold plausible numbers.
        turn: [B, S], -1 where masked out.
        turn_reward: on the last trained token of each turn, 0 elsewhere, [B, S].
        version: of the policy that drew the token, at most 8 steps before ``step``, [B, S]; -1 where masked out.
        behaviour, proximal, current, reference: log-probs, [B, S].
        value, new_value: the critic's before and while it is trained, [B, S].
        direction: on which results per token are projected, [D, B, S].
    """

    index: int
    step: int
    group: Ints
    reward: Floats
    truncated: Bools
    final_value: Floats
    length: Ints
    mask: Bools
    turn: Ints
    turn_reward: Floats
    version: Ints
    behaviour: Floats
    proximal: Floats
    current: Floats
    reference: Floats
    value: Floats
    new_value: Floats
    direction: Floats

    @property
    def is_strided(self) -> bool:
        """Whether groups are runs of equal length."""
        return self.index % 4 == 0

    @property
    def is_trained(self) -> Bools:
        """Rows with at least one trained token, [B]."""
        return self.mask.any(1)

    @property
    def is_compared(self) -> Bools:
        """Trained rows whose group has another trained row, [B]."""
        return self.is_trained & (self._peers(self.is_trained) > 1)

    @property
    def has_turn_rewards(self) -> bool:
        return bool(self.turn_reward.any())

    @property
    def token_reward(self) -> Floats:
        """The sample's reward on its last trained token, and the turns' on theirs, [B, S]."""
        return self.on_last(self.reward) + self.turn_reward

    @property
    def without_turn_rewards(self) -> Case:
        """The same case, each sample with its own reward only."""
        return replace(self, turn_reward=np.zeros_like(self.turn_reward))

    @property
    def pairs(self) -> Ints:
        """Trained rows two by two, chosen first, [pairs, 2]."""
        rows = np.flatnonzero(self.is_trained)
        return rows[: len(rows) // 2 * 2].reshape(-1, 2)

    def on_last(self, x: Floats) -> Floats:
        """A value per sample on its last trained token, 0 elsewhere, [B, S]."""
        left = np.cumsum(self.mask[:, ::-1], axis=1)[:, ::-1]
        return np.where(self.mask & (left == 1), x[:, None], 0.0)

    def projected(self, x: Floats) -> list[float]:
        """A result per token [B, S] on each direction, [D]; nothing outside the mask counts."""
        return (self.direction * np.where(self.mask, x, 0.0)).sum((1, 2)).tolist()

    def _peers(self, valid: Bools) -> Ints:
        return ((self.group[:, None] == self.group[None]) & valid[None]).sum(1)


@cache
def cases() -> tuple[Case, ...]:
    """All of them, in order."""
    return tuple(map(draw, range(NUM_CASES)))


def checksum() -> str:
    """SHA-256 of everything in ``cases``."""
    digest = hashlib.sha256()
    for array in _arrays():
        kind = "<f8" if array.dtype.kind == "f" else "<i8"
        digest.update(repr(array.shape).encode() + array.astype(kind).tobytes())
    return digest.hexdigest()


def _arrays() -> Iterator[NDArray[np.generic]]:
    return (np.asarray(getattr(case, field.name)) for case in cases() for field in fields(case))


def draw(index: int) -> Case:
    """Case ``index``; only raw integers and floats of the generator are used, whose streams numpy keeps."""
    rng = np.random.Generator(np.random.PCG64([SEED, index]))
    group = _groups(rng, is_strided=index % 4 == 0)
    size = len(group)
    turn, length = _turns(rng, size, most=3 if index % 3 == 0 else 1)
    mask = turn >= 0
    step = MAX_STALENESS + index
    version = np.where(mask, _versions(rng, turn.shape, step), -1)
    log_probs = _log_probs(rng, step - np.where(mask, version, step))
    value = _uniform(rng, turn.shape, -1.0, 1.0)
    surprise = np.where(rng.random(turn.shape) < 0.05, 24.0, 1.0)
    return Case(
        index=index,
        step=step,
        group=group,
        reward=_rewards(rng, group),
        truncated=rng.random(size) < 0.3,
        final_value=_uniform(rng, (size,), -1.0, 1.0),
        length=length,
        mask=mask,
        turn=turn,
        turn_reward=_turn_rewards(rng, turn) if index % 6 == 0 else np.zeros(turn.shape),
        version=version,
        **log_probs,
        value=value,
        new_value=value + surprise * _uniform(rng, turn.shape, -0.6, 0.6),
        direction=_uniform(rng, (NUM_DIRECTIONS, *turn.shape), -1.0, 1.0),
    )


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float) -> Floats:
    return _gridded(low + (high - low) * rng.random(shape))


def _gridded(x: Floats) -> Floats:
    return np.round(x * _GRID) / _GRID


def _groups(rng: np.random.Generator, *, is_strided: bool) -> Ints:
    if is_strided:
        return np.repeat(np.arange(3), 4)
    sizes = rng.integers(1, 5, int(rng.integers(3, 5)))
    sizes[0] = max(2, sizes[0])
    group = np.repeat(np.arange(len(sizes)), sizes)
    return group[np.argsort(rng.random(len(group)), kind="stable")]


def _rewards(rng: np.random.Generator, group: Ints) -> Floats:
    """Quarters, or right and wrong; every fourth group agrees."""
    is_binary = rng.random() < 0.5
    reward = np.where(is_binary, rng.integers(0, 2, len(group)), rng.integers(-6, 7, len(group)) / 4)
    for each in range(int(group.max()) + 1):
        if rng.random() < 0.25:
            reward[group == each] = 0.25
    return reward


def _turns(rng: np.random.Generator, size: int, *, most: int) -> tuple[Ints, Ints]:
    """The turn of each token, -1 where it is masked out, [B, S]; and lengths, [B]."""
    rows = []
    for _ in range(size):
        row: list[int] = []
        for turn in range(int(rng.integers(1, most + 1))):
            row += [-1] * int(rng.integers(1, 3)) if turn else []
            kept = rng.random(int(rng.integers(1, LONGEST_TURN[most] + 1))) > 0.15
            kept[-1] = True
            row += np.where(kept, turn, -1).tolist()
        row += [-1] * int(rng.integers(0, 2))
        is_empty = rng.random() < 0.08
        rows.append([-1] * len(row) if is_empty else row)
    rows[0] = rows[0] if max(rows[0]) >= 0 else [0]
    longest = max(map(len, rows))
    turn = np.array([row + [-1] * (longest - len(row)) for row in rows], dtype=np.int64)
    return turn, np.array([len(row) for row in rows], dtype=np.int64)


def _turn_rewards(rng: np.random.Generator, turn: Ints) -> Floats:
    last = np.zeros(turn.shape, dtype=bool)
    for row, ids in enumerate(turn):
        for each in set(ids[ids >= 0].tolist()):
            last[row, np.flatnonzero(ids == each)[-1]] = True
    return np.where(last, (rng.integers(0, 8, turn.shape) * 2 - 7) / 8, 0.0)


def _versions(rng: np.random.Generator, shape: tuple[int, ...], step: int) -> Ints:
    """Weights move on while a sequence is drawn."""
    first = step - rng.integers(0, MAX_STALENESS + 1, (shape[0], 1))
    return np.minimum(first + np.cumsum(rng.random(shape) < 0.2, axis=1), step)


def _log_probs(rng: np.random.Generator, staleness: Ints) -> dict[str, Floats]:
    """The staler a token, the further behaviour is from proximal; now and then current is far from proximal."""
    shape = staleness.shape
    behaviour = _uniform(rng, shape, -5.0, -0.05)
    spread = 0.05 + 0.25 * staleness
    proximal = behaviour + _gridded((2 * rng.random(shape) - 1) * spread)
    jump = np.where(rng.random(shape) < 0.1, 4.0, 1.0)
    current = proximal + jump * _uniform(rng, shape, -0.5, 0.5)
    reference = current + _uniform(rng, shape, -1.0, 1.0)
    named = {"behaviour": behaviour, "proximal": proximal, "current": current, "reference": reference}
    return {name: np.minimum(x, -1 / _GRID) for name, x in named.items()}
