"""The algorithm suite passes sound algorithms and fails planted mutants, naming the broken rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from areal_lit.contracts.algorithm import Algorithm, Need
from areal_lit.testing.algorithm import check_algorithm
from areal_lit.token_batch import Dim, Loss, Objective, TokenBatch, TokenOutputs, masked_metric
from areal_lit.types import Metric


class Sound(Algorithm):
    """REINFORCE with a group baseline, in plain sight; mutants override one step of it."""

    @property
    def columns(self) -> Mapping[str, Dim]:
        return {"advantage": "T"}

    def centred(self, batch: TokenBatch) -> torch.Tensor:
        voters = (batch["scored"] & (batch.loss_tokens_S > 0)).double()
        reward = batch["reward"].double().where(voters > 0, 0.0)
        index, zeros = batch.group_index_S, torch.zeros(batch.num_segments, dtype=torch.float64)
        total, count = zeros.index_add(0, index, reward), zeros.index_add(0, index, voters)
        return (reward - (total / count.clamp(min=1))[index]).float()

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch.with_columns(advantage=batch.to_tokens(self.centred(batch)))

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        mask = minibatch["loss_mask"].float()
        return minibatch.with_columns(token_weight=mask / mask.sum().clamp(min=1))

    def objectives(self) -> Mapping[str, Objective]:
        return {"policy": self.policy}

    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        mask = batch["loss_mask"]
        current = outputs.logprob_T.where(mask, 0.0)
        ratio = (current - batch["logprob"].where(mask, 0.0)).exp()
        return Loss(values=-ratio * batch["advantage"].where(mask, 0.0), metrics=(masked_metric("r", ratio, mask),))


class Indifferent(Sound):
    """Says that rewards do not matter, and learns from them."""

    uses_rewards: Any = False


class MicrobatchMean(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = super().policy(outputs, batch)
        return Loss(values=loss.values / batch["loss_mask"].sum().clamp(min=1))


class MicrobatchBaseline(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        mask = batch["loss_mask"]
        centred = batch["advantage"] - batch["advantage"].where(mask, 0.0).sum() / mask.sum().clamp(min=1)
        return super().policy(outputs, batch.with_columns(advantage=centred))


class GroupsByStride(Sound):
    def centred(self, batch: TokenBatch) -> torch.Tensor:
        reward = batch["reward"].where(batch.loss_tokens_S > 0, 0.0)
        pairs = torch.arange(len(reward)) // 2
        total = torch.zeros_like(reward).index_add(0, pairs, reward)
        return reward - (total / 2)[pairs]


class MaskLeak(Sound):
    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        return minibatch.with_columns(token_weight=torch.ones(minibatch.num_tokens) / minibatch.num_tokens)


class UnmaskedRatio(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        return Loss(values=-(outputs.logprob_T - batch["logprob"]).exp() * batch["advantage"])


class WrongSign(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch.with_columns(advantage=-super().prepare(batch)["advantage"])


class UnscoredVote(Sound):
    def centred(self, batch: TokenBatch) -> torch.Tensor:
        reward, index = batch["reward"].where(batch.loss_tokens_S > 0, 0.0), batch.group_index_S
        total = torch.zeros_like(reward).index_add(0, index, reward)
        return reward - (total / torch.bincount(index, minlength=len(reward)).clamp(min=1))[index]


class UnscoredInDenominator(Sound):
    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        return minibatch.with_columns(token_weight=minibatch["loss_mask"].float() / minibatch.num_segments)


class PoisonedByZeroVariance(Sound):
    def centred(self, batch: TokenBatch) -> torch.Tensor:
        centred, index = super().centred(batch), batch.group_index_S
        square = torch.zeros_like(centred).index_add(0, index, centred**2)
        return centred / square.sqrt()[index]


class ExplodingLeaveOneOut(Sound):
    def centred(self, batch: TokenBatch) -> torch.Tensor:
        voters = (batch.loss_tokens_S > 0).float()
        centred, index = super().centred(batch) * voters, batch.group_index_S
        squares = torch.zeros_like(centred).index_add(0, index, centred**2)[index]
        n = torch.zeros_like(centred).index_add(0, index, voters)[index]
        return centred / ((squares - centred**2 * n / (n - 1).clamp(min=1)).clamp(min=0).sqrt() + 1e-6)


class EmptyStep(Sound):
    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        mask = minibatch["loss_mask"].float()
        return minibatch.with_columns(token_weight=mask / mask.sum())


class InPlace(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        batch["reward"].mul_(2)
        return super().prepare(batch)


class Dice(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = super().policy(outputs, batch)
        return Loss(values=loss.values * torch.rand(()))


class Undeclared(Sound):
    @property
    def columns(self) -> Mapping[str, Dim]:
        return {}


class SmuggledColumn(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        full = super().prepare(batch)
        return TokenBatch(columns={**full.columns, "mine": full["token"]}, dims=full.dims, num_atoms=full.num_atoms)


class MovesInPrepare(Sound):
    moved = 1.0

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        self.moved *= 0.5
        prepared = super().prepare(batch)
        return prepared.with_columns(advantage=prepared["advantage"] * self.moved)


class ForgetsItsWeight(Sound):
    weight = 1.0

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return super().prepare(batch).with_scalars(weight=self.weight)

    def end_step(self, metrics: Mapping[str, Metric]) -> tuple[Metric, ...]:
        self.weight *= 0.5
        return ()


class TurnRewardsUnmasked(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch.with_columns(
            advantage=super().prepare(batch)["advantage"] + batch.to_tokens(batch.segment_sum(batch["turn_reward"]))
        )


class WrongHeads(Sound):
    @property
    def heads(self) -> Any:
        return {"policy": "lm", "critic": "value"}


class UnmaskedMetric(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        loss = super().policy(outputs, batch)
        value = float(batch["advantage"].sum())
        return Loss(values=loss.values, metrics=(Metric(name="sum", sum=value, reduction="sum"),))


class UnmaskedMean(Sound):
    def centred(self, batch: TokenBatch) -> torch.Tensor:
        votes = (batch["length"] * (batch.loss_tokens_S > 0)).double()
        reward = batch["reward"].double().where(votes > 0, 0.0)
        return (reward - (reward * votes).sum() / votes.sum().clamp(min=1)).float()


class MeanOverLength(Sound):
    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        share = minibatch["loss_mask"].float() / minibatch.to_tokens(minibatch["length"])
        return minibatch.with_columns(token_weight=share / (minibatch.loss_tokens_S > 0).sum().clamp(min=1))


class MaskOffByOne(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        return super().policy(outputs, batch.with_columns(loss_mask=batch["loss_mask"] & batch["loss_mask"].roll(-1)))


class AdvantageOffByOne(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch.with_columns(advantage=super().prepare(batch)["advantage"].roll(-1))


class InvertedRatio(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        mask = batch["loss_mask"]
        inverted = (batch["logprob"] - outputs.logprob_T).where(mask, 0.0).exp()
        return Loss(values=-inverted * batch["advantage"].where(mask, 0.0))


class DetachedRatio(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        return super().policy(TokenOutputs(logprob_T=outputs.logprob_T.detach()), batch)


class MaskByProduct(Sound):
    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        ratio = ((outputs.logprob_T - batch["logprob"].where(batch["loss_mask"], 0.0)) * batch["loss_mask"]).exp()
        return Loss(values=-ratio * batch["advantage"].where(batch["loss_mask"], 0.0))


class EntropyOfThePrompt(Sound):
    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"entropy"})

    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        entropy = batch.to_tokens(batch.segment_sum(outputs.entropy_T))
        return Loss(values=super().policy(outputs, batch).values - 0.1 * entropy)


class DivergenceOfThePrompt(Sound):
    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({"reference"})

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        divergence = batch.segment_sum(batch["logprob"].where(batch["loss_mask"], 0.0) - batch["reference"])
        return batch.with_columns(advantage=batch.to_tokens(self.centred(batch) - 0.1 * divergence))


class StalenessOfThePrompt(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        age = (batch.scalars["step"] - batch["version"]).float()
        share = batch.segment_sum(1 / (1 + age)) / batch["length"]
        return batch.with_columns(advantage=super().prepare(batch)["advantage"] * batch.to_tokens(share))


class TurnsOfTools(Sound):
    def prepare(self, batch: TokenBatch) -> TokenBatch:
        turns = batch.segment_sum((batch["turn"] == 1).float())
        return batch.with_columns(advantage=batch.to_tokens(self.centred(batch) / (1 + turns)))


class UnmaskedStepMetric(Sound):
    def step_metrics(self, batch: TokenBatch) -> list[Metric]:
        return [Metric(name="train/advantage", sum=float(batch["advantage"].sum()), count=float(batch.num_tokens))]


class ChosenByPosition(Sound):
    offline = True

    def prepare(self, batch: TokenBatch) -> TokenBatch:
        return batch

    def weigh(self, minibatch: TokenBatch) -> TokenBatch:
        return minibatch.with_columns(atom_weight=torch.ones(minibatch.num_atoms) / minibatch.num_atoms)

    def policy(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        score = batch.segment_sum(outputs.logprob_T.where(batch["loss_mask"], 0.0))
        sign = 1.0 - 2.0 * (torch.arange(batch.num_segments) % 2)
        return Loss(values=-torch.nn.functional.logsigmoid(batch.atom_sum(sign * score)), per="atom")


def test_a_sound_algorithm_passes() -> None:
    check_algorithm(Sound())


@pytest.mark.parametrize(
    ("mutant", "rule"),
    [
        (Indifferent, "`uses_rewards` is False, and the gradient depends on rewards"),
        (MicrobatchMean, "depends on micro-batches"),
        (MicrobatchBaseline, "depends on micro-batches"),
        (GroupsByStride, "order of samples"),
        (MaskLeak, "mask leak"),
        (UnmaskedRatio, "where `loss_mask` is False changes the gradient"),
        (WrongSign, "wrong sign"),
        (UnscoredVote, "still vote"),
        (UnscoredInDenominator, "still vote"),
        (PoisonedByZeroVariance, "not finite"),
        (ExplodingLeaveOneOut, "nearly equal rewards"),
        (EmptyStep, "not finite everywhere"),
        (InPlace, "changed column 'reward' in place"),
        (Dice, "no random numbers"),
        (SmuggledColumn, "column 'mine' is not declared"),
        (MovesInPrepare, "two values for one batch"),
        (ForgetsItsWeight, "put them into `state_dict`"),
        (TurnRewardsUnmasked, "column 'turn_reward'"),
        (WrongHeads, "must be the same"),
        (UnmaskedMetric, "metric 'policy/sum'"),
        (UnmaskedStepMetric, "metric 'train/advantage'"),
        (UnmaskedMean, "more tokens where `loss_mask` is False"),
        (MeanOverLength, "more tokens where `loss_mask` is False"),
        (StalenessOfThePrompt, "column 'version'"),
        (TurnsOfTools, "column 'turn'"),
        (MaskOffByOne, "wrong sign"),
        (AdvantageOffByOne, "order of samples"),
        (InvertedRatio, "wrong sign"),
        (DetachedRatio, "has no gradient"),
        (MaskByProduct, "the model's outputs"),
        (EntropyOfThePrompt, "the model's outputs"),
        (DivergenceOfThePrompt, "column 'reference'"),
    ],
)
def test_planted_mutants_fail(mutant: type[Algorithm], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_algorithm(mutant())


def test_sides_known_by_position_fail() -> None:
    with pytest.raises(AssertionError, match="order of groups, or of samples within a group or an atom"):
        check_algorithm(ChosenByPosition(), pairs=True)


def test_undeclared_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="'advantage' is not declared"):
        check_algorithm(Undeclared())
