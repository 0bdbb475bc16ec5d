"""What the algorithm suite runs: one step of an algorithm on a toy model, through the product's own batching.

Shapes: T packed tokens, S segments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from areal_lit.batching import pack, plan_shards, shard
from areal_lit.contracts.algorithm import Algorithm
from areal_lit.run.model_columns import FILLED
from areal_lit.testing.toy import NEWEST_VERSION, RaggedGroups, ToyModel, visible
from areal_lit.token_batch import CORE_COLUMNS, TokenBatch, TokenOutputs, weighted_sum
from areal_lit.types import Group, Metric, merge_metrics
from areal_lit.worker import ON_RANKS

COLUMNS_OF_NEED: Mapping[str, tuple[str, ...]] = {need: tuple(filled.columns) for need, filled in FILLED.items()}
_GARBAGE = (1e3, -1e3, float("nan"))
_WHOLE_GARBAGE = (0, 1, 5)
"""For versions, turns and truths: values that there are, at the wrong place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Gradients of every role and merged metrics of one optimizer step: ``policy/NAME``, the step's as they are."""

    gradients: dict[str, Tensor]
    metrics: dict[str, Metric]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmCase:
    """An algorithm, a source of batches, and the toy models of its roles."""

    algorithm: Algorithm
    draw: RaggedGroups
    seed: int

    def groups(self) -> list[Group]:
        return self.draw.draw(np.random.default_rng(self.seed))

    def packed(self, groups: Sequence[Group]) -> TokenBatch:
        """The groups' batch with the columns in ``needs`` filled near the policy's own log-probs."""
        batch = pack(groups, algorithm_columns=self.algorithm.columns).with_scalars(step=NEWEST_VERSION)
        with torch.no_grad():
            policy = self.model("policy")(batch)
            critic = self.model("critic")(batch)
        assert policy.logprob_T is not None
        assert critic.value_T is not None
        assert critic.final_value_S is not None
        filled = {"logprob": self._noisy(policy.logprob_T, batch, 1).where(batch["loss_mask"], 0.0)}
        if self.algorithm.offline:
            filled.clear()
        for index, need in enumerate(("proximal", "reference", "teacher")):
            filled[need] = self._noisy(policy.logprob_T, batch, 2 + index)
        filled |= {"value": critic.value_T.float(), "final_value": critic.final_value_S.float()}
        if "topk" in self.algorithm.needs:
            filled |= self.topk(batch)
        allowed = {"logprob", *(c for need in self.algorithm.needs for c in COLUMNS_OF_NEED.get(need, ()))}
        return batch.with_columns(**{name: x for name, x in filled.items() if name in allowed})

    def model(self, role: str) -> ToyModel:
        model = ToyModel(seed=self.seed_of(role))
        if role == "policy" and "divergence" in self.algorithm.needs:
            model.compare_with(self.model("teacher"), self.algorithm.pointwise_divergence)
        return model

    @torch.no_grad()
    def topk(self, batch: TokenBatch) -> dict[str, Tensor]:
        """The teacher's likeliest tokens, as many as the toy vocabulary has at most."""
        log_TV = self.model("teacher").log_distributions(batch)
        logprob_TK, token_TK = log_TV.topk(min(self.algorithm.num_topk, log_TV.shape[1]))
        return {"topk_token": token_TK, "topk_logprob": logprob_TK.float()}

    def seed_of(self, role: str) -> int:
        return 1 + sum(map(ord, role))

    def _noisy(self, logprob_T: Tensor, batch: TokenBatch, stream: int) -> Tensor:
        """Log-probs with noise that depends on a token's group, sample and position only, not on order."""
        key = batch.to_tokens(batch["group"] * 31 + batch["sample"]) * 17 + batch["position"] + 1009 * stream
        return (logprob_T + 0.4 * torch.sin(key.double() * 12.9898)).float()

    def step(
        self,
        batch: TokenBatch,
        *,
        change: Callable[[TokenBatch], TokenBatch] | None = None,
        garble: bool = False,
    ) -> Result:
        """``prepare``, ``weigh`` and ``objectives`` over micro-batches, as a run does them.

        Args:
            change: applied to the prepared and weighed batch.
            garble: fill the model's outputs with garbage where the mask is False.
        """
        prepared = self.algorithm.prepare(batch)
        weighed = self.algorithm.weigh(prepared)
        weighed = weighed if change is None else change(weighed)
        result = self.train(weighed, num_shards=1, max_tokens=1 << 30, garble=garble)
        return replace(result, metrics=result.metrics | merge_metrics(list(self.algorithm.step_metrics(prepared))))

    def train(
        self,
        weighed: TokenBatch,
        *,
        num_shards: int,
        max_tokens: int,
        garble: bool = False,
        models: Mapping[str, ToyModel] | None = None,
    ) -> Result:
        plan = plan_shards(weighed, num_shards=num_shards, max_tokens=max_tokens, packing="ffd")
        gradients: dict[str, Tensor] = {}
        metrics: list[Metric] = []
        for role, objective in self.algorithm.objectives().items():
            model = self.model(role) if models is None else models[role]
            parameters = list(model.parameters())
            gradient = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
            for microbatch in (mb for shard_batches in shard(weighed, plan) for mb in shard_batches):
                outputs = self.visible(model(microbatch), role)
                loss = objective(garbled(outputs, microbatch) if garble else outputs, microbatch)
                total = weighted_sum(loss, microbatch)
                if total.requires_grad:
                    parts = torch.autograd.grad(total, parameters, allow_unused=True)
                    parts = tuple(
                        torch.zeros_like(p) if g is None else g for g, p in zip(parts, parameters, strict=True)
                    )
                    gradient += torch.cat([g.flatten() for g in parts])
                metrics += [replace(metric, name=f"{role}/{metric.name}") for metric in loss.metrics]
            gradients[role] = gradient
        return Result(gradients=gradients, metrics=merge_metrics(metrics))

    def visible(self, outputs: TokenOutputs, role: str) -> TokenOutputs:
        """Only what a strategy with this head would give."""
        return visible(outputs, self.algorithm.heads[role], ON_RANKS & self.algorithm.needs)


def garbled_columns(batch: TokenBatch, names: Sequence[str]) -> TokenBatch:
    """Garbage in these columns where nothing is trained: per token, and per segment without loss tokens.

    An algorithm's own whole numbers stay: they may be indices.
    """
    untrained = {"T": ~batch["loss_mask"], "S": batch.loss_tokens_S == 0}
    changed = {}
    for name in names:
        dim = batch.dims[name]
        if name not in batch or dim not in untrained:
            continue
        is_number = batch[name].is_floating_point() or batch[name].dtype == torch.bool
        if is_number or name in CORE_COLUMNS:
            changed[name] = _garbage_where(untrained[dim], batch[name])
    return batch.with_columns(**changed)


def garbled(outputs: TokenOutputs, batch: TokenBatch) -> TokenOutputs:
    untrained_T = ~batch["loss_mask"]

    def replaced(x_T: Tensor | None) -> Tensor | None:
        return None if x_T is None else _garbage_where(untrained_T, x_T)

    return replace(
        outputs,
        logprob_T=replaced(outputs.logprob_T),
        entropy_T=replaced(outputs.entropy_T),
        value_T=replaced(outputs.value_T),
        topk_logprob_TK=replaced(outputs.topk_logprob_TK),
        divergence_T=replaced(outputs.divergence_T),
    )


def _garbage_where(is_untrained: Tensor, x: Tensor) -> Tensor:
    """``x`` with garbage in the rows that are untrained, whose gradient counts twice: it is to be 0 there."""
    values = _GARBAGE if x.is_floating_point() else _WHOLE_GARBAGE
    garbage = x.new_tensor(values).repeat(x.numel() // len(values) + 1)[: x.numel()].view_as(x)
    if x.requires_grad:
        garbage = garbage + 2 * (x - x.detach())
    return garbage.where(is_untrained.view(-1, *[1] * (x.dim() - 1)), x)


def assert_same(first: Result, second: Result, rule: str) -> None:
    for role, gradient in first.gradients.items():
        other = second.gradients[role]
        finite = bool(torch.isfinite(gradient).all())
        assert finite, f"the gradient of role {role!r} is not finite on a batch with groups of one and of equal rewards"
        scale = float(gradient.abs().max().clamp(min=1e-3))
        gap = float((gradient - other).abs().max()) / scale
        assert gap < 1e-5, f"{rule} (role {role!r}: relative gap {gap:.2g})"
    assert first.metrics.keys() == second.metrics.keys(), (
        f"{rule} (metrics {sorted(first.metrics)} and {sorted(second.metrics)})"
    )
    for name, metric in first.metrics.items():
        value, other_value = metric.value, second.metrics[name].value
        same = np.isclose(value, other_value, rtol=1e-4, atol=1e-5, equal_nan=True)
        assert same, f"{rule} (metric {name!r}: {value:.6g} and {other_value:.6g}; mask it, and give it sum and count)"
