"""Composite: a weighted sum of rewards, each visible as a part."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

from areal_lit.contracts import GroupReward, Reward
from areal_lit.rewarding import judge
from areal_lit.text import TextCodec
from areal_lit.types import Example, Scored, StepScore, Trajectory, Unscored


class Composite(Reward):
    """The weighted sum of its parts; unscored as soon as one part is.

    Each part's own value, before its weight, is reported under its name; parts of a part as ``name/part``. Scores of
    steps get the weight of their part.

    Args:
        parts: name -> reward.
        weights: name -> weight; 1 where not given.
    """

    def __init__(self, *, parts: Mapping[str, Reward], weights: Mapping[str, float] | None = None) -> None:
        if not parts:
            raise ValueError("parts must name at least one reward")
        if unknown := sorted((weights or {}).keys() - parts.keys()):
            raise ValueError(f"weights are given for {unknown}, which are not among the parts {sorted(parts)}")
        for name, part in parts.items():
            if isinstance(part, GroupReward) or inspect.iscoroutinefunction(part.score):
                kind = "scores whole groups" if isinstance(part, GroupReward) else "is async"
                raise ValueError(
                    f"part {name!r} ({type(part).__name__}) {kind}, which a composite cannot combine; "
                    "write one reward of that kind that adds the others itself"
                )
        self.parts = parts
        self.weights = weights

    @property
    def scores_steps(self) -> bool | None:
        known = [part.scores_steps for part in self.parts.values()]
        return True if True in known else None if None in known else False

    def use_codec(self, codec: TextCodec) -> None:
        for part in self.parts.values():
            part.use_codec(codec)

    def setup(self) -> None:
        for part in self.parts.values():
            part.setup()

    def check(self, example: Example) -> None:
        for name, part in self.parts.items():
            try:
                part.check(example)
            except ValueError as error:
                raise ValueError(f"part {name}: {error}") from error

    def score(self, trajectory: Trajectory) -> Scored | Unscored:
        weights = self.weights or {}
        total = 0.0
        values: dict[str, float] = {}
        metrics: dict[str, float] = {}
        steps: list[StepScore] = []
        for name, part in self.parts.items():
            outcome = judge(part.score(trajectory))
            if outcome.value is None:
                return Unscored(reason=f"part {name}: {outcome.reason}")
            weight = weights.get(name, 1.0)
            total += weight * outcome.value
            steps += [replace(step, value=weight * step.value) for step in outcome.steps]
            values[name] = outcome.value
            values |= {f"{name}/{inner}": value for inner, value in outcome.parts.items()}
            metrics |= {f"{name}/{inner}": value for inner, value in outcome.metrics.items()}
        return Scored(value=total, parts=values, metrics=metrics, steps=tuple(steps))
