"""samples.jsonl: what the model wrote, with its rewards, for people to read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from areal_lit.contracts import RunLogger
from areal_lit.types import Group, Trajectory


class Samples(RunLogger):
    """Writes ``samples.jsonl``: a line per logged trajectory.

    Args:
        every_steps: log on every so many steps.
        groups_per_step: prompts logged of such a step.
        samples_per_group: completions logged of each: the best, the worst, then others in order.
        max_characters: longer prompts and completions are cut in the middle; 0 keeps them whole.
        file_name: in the run's directory.
    """

    def __init__(
        self,
        *,
        every_steps: int = 1,
        groups_per_step: int = 1,
        samples_per_group: int = 2,
        max_characters: int = 20_000,
        file_name: str = "samples.jsonl",
    ) -> None:
        for name, value, least in (
            ("every_steps", every_steps, 1),
            ("groups_per_step", groups_per_step, 1),
            ("samples_per_group", samples_per_group, 1),
            ("max_characters", max_characters, 0),
        ):
            if value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        self.every_steps = every_steps
        self.groups_per_step = groups_per_step
        self.samples_per_group = samples_per_group
        self.max_characters = max_characters
        self.file_name = file_name
        self._file: IO[str] | None = None

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        path = run_dir / self.file_name
        kept = _lines_until(path, step) if step > 0 and path.exists() else []
        partial = path.with_name(f".{path.name}.partial")
        partial.write_bytes(b"".join(kept))
        os.replace(partial, path)
        # half a surrogate pair cannot be UTF-8; its escape is the same character in JSON
        self._file = path.open("a", encoding="utf-8", errors="backslashreplace")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers are not kept here."""

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        if self._file is None:
            raise RuntimeError(
                "the samples logger is closed or was not set up; call setup(run_dir, config, step) first"
            )
        if step % self.every_steps:
            return
        for group in groups[: self.groups_per_step]:
            for trajectory in _telling(group.trajectories, self.samples_per_group):
                record = json.dumps(self._record(step, trajectory), ensure_ascii=False, allow_nan=False)
                self._file.write(f"{record}\n")
        self._file.flush()

    def close(self, status: str) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _record(self, step: int, trajectory: Trajectory) -> dict[str, Any]:
        prompt = trajectory.prompt.example.prompt
        versions = trajectory.versions[trajectory.versions >= 0]
        return {
            "step": step,
            "source": trajectory.prompt.source,
            "prompt_id": trajectory.prompt.prompt_id,
            "sample": trajectory.sample,
            "prompt": self._cut(prompt) if isinstance(prompt, str) else [self._message(message) for message in prompt],
            "completion": self._cut(trajectory.text),
            "reward": _number(trajectory.reward),
            "unscored": trajectory.unscored,
            "parts": {name: _number(value) for name, value in trajectory.reward_parts.items()},
            "versions": [int(versions.min()), int(versions.max())] if versions.size else [],
            "stop_reason": trajectory.stop_reason,
            "num_tokens": len(trajectory.token_ids),
            "num_generated": trajectory.num_generated,
        }

    def _message(self, message: Mapping[str, Any]) -> dict[str, str]:
        return {"role": str(message["role"]), "content": self._cut(str(message["content"]))}

    def _cut(self, text: str) -> str:
        if not self.max_characters or len(text) <= self.max_characters:
            return text
        half = self.max_characters // 2
        return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[len(text) - half :]}"


def _number(value: float | None) -> float | None:
    """JSON has no NaN and no infinities."""
    return None if value is None or not math.isfinite(value) else float(value)


def _telling(trajectories: Sequence[Trajectory], num: int) -> list[Trajectory]:
    """The best, the worst, then others in order; at most ``num``, in sample order."""
    scored = [t for t in trajectories if t.reward is not None]
    extremes = [max(scored, key=_reward), min(scored, key=_reward)] if scored else []
    order = [*extremes, *trajectories]
    distinct = list({id(t): t for t in order}.values())[:num]
    return sorted(distinct, key=lambda t: t.sample)


def _reward(trajectory: Trajectory) -> float:
    return -math.inf if trajectory.reward is None or math.isnan(trajectory.reward) else trajectory.reward


def _lines_until(path: Path, step: int) -> list[bytes]:
    """Whole lines up to a step; a torn last line is left out."""
    with path.open("rb") as file:
        whole = [line for line in file if line.endswith(b"\n")]
    return [line for line in whole if json.loads(line)["step"] <= step]
