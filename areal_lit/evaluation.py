"""Evaluation: held-out sets, when to run them, and what their rewards say."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from areal_lit.contracts import DataModule, Source
from areal_lit.sizes import MAX_EPISODES, require_size
from areal_lit.types import Group, Metric, Prompt, Sampling


@final
@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Which held-out sets are evaluated, and when.

    Args:
        data: further evaluation data by name, beside the training data's own evaluation sources.
        every_steps: evaluate after every so many training steps; 0 is never.
        at_start: also before training.
        at_end: also after the last step.
        samples: completions per prompt, k of pass@k.
        max_prompts: of each set, the first so many; None is all.
        sampling: how evaluation samples; by default as training does.
        success_reward: rewards from here on count as a pass.
        timeout_s: longest one evaluation may take.
    """

    data: dict[str, DataModule] | None = None
    every_steps: int = 0
    at_start: bool = False
    at_end: bool = False
    samples: int = 1
    max_prompts: int | None = None
    sampling: Sampling | None = None
    success_reward: float = 1.0
    timeout_s: float = 3600.0

    def __post_init__(self) -> None:
        require_size("evaluation.every_steps", self.every_steps, least=0)
        require_size("evaluation.samples", self.samples, least=1, most=MAX_EPISODES)
        if self.max_prompts is not None and self.max_prompts < 1:
            raise ValueError(f"evaluation.max_prompts must be >= 1 or null for all, got {self.max_prompts}")

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """Whether the default policy evaluates after ``step`` steps."""
        if step == 0:
            return self.at_start
        return (self.every_steps > 0 and step % self.every_steps == 0) or (is_last and self.at_end)


def evaluation_sources(data: DataModule, further: Mapping[str, DataModule] | None) -> dict[str, Source]:
    """Every evaluation set by name. Raises ValueError when two share a name, or one is empty."""
    sources = dict(data.evaluation())
    for name, module in (further or {}).items():
        inner = module.evaluation()
        for full, source in zip(merged_names(name, inner), inner.values(), strict=True):
            if full in sources:
                raise ValueError(f"two evaluation sets are called {full!r}; rename one in evaluation.data")
            sources[full] = source
    for name, source in sources.items():
        if not len(source.examples):
            raise ValueError(f"evaluation set {name!r} has no examples; remove it or check its filter")
    return sources


def evaluation_names(data: DataModule, further: Mapping[str, DataModule] | None) -> list[str] | None:
    """The keys of ``evaluation_sources`` before ``setup``; None where a module does not know them yet."""
    names: list[str] = []
    for name, module in {"": data, **(further or {})}.items():
        inner = module.evaluation_names()
        if inner is None:
            return None
        names += merged_names(name, inner) if name else inner
    return names


def merged_names(name: str, inner: Collection[str]) -> list[str]:
    """What the sources of a module called ``name`` are called among others: by that name if there is only one."""
    return [name] if len(inner) == 1 else [f"{name}/{each}" for each in inner]


def metric_names(samples: int) -> list[str]:
    """What ``evaluation_metrics`` says of each set."""
    return ["reward", "reward_ci95", "unscored", "length", *(f"pass@{k}" for k in sorted({1, samples}))]


def evaluation_prompts(name: str, source: Source, max_prompts: int | None) -> list[Prompt]:
    """The first prompts of a set, in order."""
    num = len(source.examples) if max_prompts is None else min(max_prompts, len(source.examples))
    return [Prompt(prompt_id=i, source=name, row=i, epoch=0, example=source.examples[i]) for i in range(num)]


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Unbiased estimate of P(at least one of k passes): 1 - C(n-c, k) / C(n, k) (arXiv 2107.03374)."""
    if k > num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples, got {num_samples}")
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def evaluation_metrics(name: str, groups: Sequence[Group], *, samples: int, success_reward: float) -> list[Metric]:
    """Reward with its 95% interval, pass@1 and pass@k of one set.

    The interval is 1.96 standard errors over prompts (samples of one prompt are not independent). Prompts
    with unscored samples enter pass@k only with the samples that were scored, if those are at least k.
    """
    prefix = f"eval/{name}"
    means = [sum(group.rewards) / len(group.rewards) for group in groups if group.rewards]
    unscored = sum(len(group.trajectories) - len(group.rewards) for group in groups)
    metrics = [
        Metric(name=f"{prefix}/reward", sum=math.fsum(means), count=len(means)),
        Metric(name=f"{prefix}/unscored", sum=unscored, reduction="sum"),
        Metric(
            name=f"{prefix}/length",
            sum=sum(t.num_generated for group in groups for t in group.trajectories),
            count=sum(len(group.trajectories) for group in groups),
        ),
    ]
    if len(means) > 1:
        mean = math.fsum(means) / len(means)
        variance = math.fsum((x - mean) ** 2 for x in means) / (len(means) - 1)
        metrics.append(Metric(name=f"{prefix}/reward_ci95", sum=1.96 * math.sqrt(variance / len(means))))
    for k in sorted({1, samples}):
        passes = [
            pass_at_k(len(group.rewards), sum(r >= success_reward for r in group.rewards), k)
            for group in groups
            if len(group.rewards) >= k
        ]
        metrics.append(Metric(name=f"{prefix}/pass@{k}", sum=math.fsum(passes), count=len(passes)))
    return metrics
