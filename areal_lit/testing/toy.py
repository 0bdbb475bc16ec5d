"""Random ragged groups, and a differentiable toy model over packed batches, for conformance suites.

Shapes: T packed tokens, S segments, V vocabulary, D features.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from areal_lit.contracts.strategy import Head, Output
from areal_lit.token_batch import Divergence, TokenBatch, TokenOutputs
from areal_lit.types import Example, Group, IntArray, Prompt, Trajectory

VOCABULARY = 16
_FEATURES = 8

NEWEST_VERSION = 8
"""Of drawn tokens; the step that a batch of them is trained in."""

_FIELDS: Mapping[Output, tuple[str, ...]] = {
    "entropy": ("entropy_T",),
    "value": ("value_T", "final_value_S"),
    "topk": ("topk_token_TK", "topk_logprob_TK"),
    "divergence": ("divergence_T",),
}

ExtraColumns = Callable[[np.random.Generator, int, int], Mapping[str, Any]]
"""(random numbers, index within the atom, tokens) -> what ``Trajectory.columns`` hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaggedGroups:
    """Draws groups of unequal size whose members differ in every way that has broken an algorithm.

    Prompts and completions of random length, tool tokens amid completions, empty completions, truncations, two
    turns, which in every other group have rewards of their own, versions up to 8 apart, temperatures.

    Args:
        pairs: two trajectories per atom, both from data (no reward, no versions).
        offline: trajectories from data.
        columns: fills ``Trajectory.columns``.
    """

    pairs: bool = False
    offline: bool = False
    columns: ExtraColumns | None = None

    def draw(self, rng: np.random.Generator, *, num_groups: int = 5) -> list[Group]:
        """Random groups, with at least one of a single member and one whose rewards are equal."""
        sizes = [1 + int(rng.integers(0, 6)) for _ in range(num_groups)]
        sizes[0], sizes[1], sizes[2] = 1, 3, 5
        return [self.group(rng, 100 - 3 * g, size, equal=g == 1) for g, size in enumerate(sizes)]

    def group(self, rng: np.random.Generator, prompt_id: int, size: int, *, equal: bool = False) -> Group:
        """One group; with ``equal``, of equal rewards."""
        prompt = Prompt(prompt_id=prompt_id, source="toy", row=prompt_id, epoch=0, example=Example(prompt="toy"))
        start = 1 + int(rng.integers(0, 5))
        members = []
        for sample in range(size * (2 if self.pairs else 1)):
            reward = None if self.offline else (0.5 if equal else round(float(rng.normal()), 2))
            members.append(self._trajectory(rng, prompt, sample, start=start, reward=reward))
        return Group(prompt=prompt, trajectories=tuple(members))

    def _trajectory(
        self, rng: np.random.Generator, prompt: Prompt, sample: int, *, start: int, reward: float | None
    ) -> Trajectory:
        completion = 0 if rng.random() < 0.1 and not self.pairs else 1 + int(rng.integers(0, 12))
        n = start + completion
        mask = np.arange(n) >= start
        turn = np.where(mask, 0, -1)
        if completion > 4:
            mask[start + 2] = turn[start + 2] = False
            turn = np.where(mask, np.where(np.arange(n) > start + 2, 1, 0), -1)
        versions = np.full(n, -1) if self.offline else np.where(mask, int(rng.integers(0, NEWEST_VERSION + 1)), -1)
        return Trajectory(
            token_ids=rng.integers(0, VOCABULARY, n),
            loss_mask=mask,
            logprobs=np.zeros(n, dtype=np.float32),
            versions=versions,
            prompt=prompt,
            stop_reason="length" if rng.random() < 0.3 else "stop",
            temperature=float(rng.choice([0.7, 1.0])),
            reward=reward,
            sample=sample,
            turn_ids=turn,
            turn_rewards=_turn_rewards(turn, sample) if reward is not None and prompt.prompt_id % 2 else (),
            atom=sample // 2 if self.pairs else -1,
            columns={} if self.columns is None else self.columns(rng, sample % 2, n),
        )


def _turn_rewards(turn: IntArray, sample: int) -> tuple[float, ...]:
    return tuple(0.5 * sample - float(index) for index in range(int(turn.max(initial=-1)) + 1))


class ToyModel(torch.nn.Module):
    """Log-probs, entropies and values from the token before and its position; float64, whole in any micro-batch."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.5)

        self.token_VD = parameter(VOCABULARY, _FEATURES)
        self.position_D = parameter(_FEATURES)
        self.output_DV = parameter(_FEATURES, VOCABULARY)
        self.value_D = parameter(_FEATURES)
        self._compared: tuple[ToyModel, Divergence] | None = None

    def forward(self, batch: TokenBatch) -> TokenOutputs:
        """All outputs, aligned as a strategy aligns them: a segment's first token has log-prob and entropy 0."""
        feature_TD = self._features(batch["token"], batch["position"])
        previous_TD = feature_TD.roll(1, 0)
        is_first_T = batch["position"] == 0
        log_TV = self.log_distributions(batch)
        logprob_T = log_TV.gather(1, batch["token"][:, None])[:, 0]
        last_S = batch["length"].cumsum(0) - 1
        topk_TK = log_TV.gather(1, batch["topk_token"]) if "topk_token" in batch else None
        divergence_T = None
        if self._compared is not None:
            teacher, divergence = self._compared
            divergence_T = divergence(log_TV, teacher.log_distributions(batch).detach()).sum(-1)
        return TokenOutputs(
            logprob_T=logprob_T.masked_fill(is_first_T, 0.0),
            entropy_T=-(log_TV.exp() * log_TV).sum(-1).masked_fill(is_first_T, 0.0),
            value_T=(previous_TD @ self.value_D).masked_fill(is_first_T, 0.0),
            final_value_S=feature_TD[last_S] @ self.value_D,
            topk_token_TK=batch["topk_token"] if topk_TK is not None else None,
            topk_logprob_TK=None if topk_TK is None else topk_TK.masked_fill(is_first_T[:, None], 0.0),
            divergence_T=None if divergence_T is None else divergence_T.masked_fill(is_first_T, 0.0),
        )

    def log_distributions(self, batch: TokenBatch) -> Tensor:
        """Log-prob of every entry of the vocabulary in the place of each token, [T, V]."""
        feature_TD = self._features(batch["token"], batch["position"])
        temperature_T = batch.to_tokens(batch["temperature"].double())
        return torch.log_softmax(feature_TD.roll(1, 0) @ self.output_DV / temperature_T[:, None], dim=-1)

    def compare_with(self, teacher: ToyModel, divergence: Divergence) -> None:
        """Give ``divergence_T`` from now on."""
        self._compared = (teacher, divergence)

    def _features(self, token_T: Tensor, position_T: Tensor) -> Tensor:
        return torch.tanh(self.token_VD[token_T] + 0.1 * position_T.double()[:, None] * self.position_D)


def visible(outputs: TokenOutputs, head: Head, wanted: frozenset[Output]) -> TokenOutputs:
    """What a strategy with this head gives of them, beyond log-probs or values what is wanted."""
    if head != "lm":
        return TokenOutputs(value_T=outputs.value_T, final_value_S=outputs.final_value_S)
    unwanted = [field for output, names in _FIELDS.items() if output not in wanted for field in names]
    return replace(outputs, **dict.fromkeys(unwanted))
