"""Reward model: a scalar that agrees with preferences (Bradley-Terry; arXiv 2009.01325, 2203.02155).

Shapes: S segments (sides), A atoms (pairs).

| published | ours | why |
|---|---|---|
| all K(K-1)/2 pairs of a prompt weighed as one (2203.02155) | each row weighs the same | rows are pairs; give a prompt's pairs as often as it should count |
| head drawn from N(0, 1 / (hidden + 1)) (2009.01325) | N(0, 0.02^2), bias 0 | scores and losses start near 0 and log 2 |
| scores shifted to mean 0 afterwards | as trained | a loss of differences fixes no zero point; `reward_bias` of an algorithm shifts it |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from areal_lit.token_batch import Loss, TokenBatch, TokenOutputs
from areal_lit_algorithms.pairs import PairAlgorithm, margin, pair_metrics


class RewardModel(PairAlgorithm):
    """Score the chosen completion above the rejected one: -log sigmoid(score(chosen) - score(rejected)).

    A side's score is read from the state after its last token, which is the end token unless the side was truncated.
    The policy is the model trained, with a head for one scalar instead of the vocabulary; a checkpoint's ``hf`` folder
    holds both, and the reward `reward_model` scores with it.
    """

    @property
    def heads(self) -> Mapping[str, Literal["lm", "value", "score"]]:
        return {"policy": "score"}

    def pair_loss(self, outputs: TokenOutputs, batch: TokenBatch) -> Loss:
        from torch.nn.functional import logsigmoid

        assert outputs.final_value_S is not None
        score_S = outputs.final_value_S
        return Loss(values=-logsigmoid(margin(score_S, batch)), per="atom", metrics=pair_metrics(score_S, batch))
