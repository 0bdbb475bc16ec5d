"""samples.jsonl: what the model wrote, with its rewards, for people to read (``areal-lit samples RUN``)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec

from areal_lit.contracts import RunLogger
from areal_lit.files import replacing
from areal_lit.logs import MIB, BoundedFile, rotated
from areal_lit.readable import messages_of, whole_characters
from areal_lit.run_records import Head, Sample, Tokens
from areal_lit.secrets import redact_text
from areal_lit.types import Group, Trajectory


class Samples(RunLogger):
    """Writes ``samples.jsonl``: a line per logged trajectory, without secrets.

    At most ``groups_per_step`` · ``samples_per_group`` are written of every ``every_steps``-th step, and at most
    ``max_mib`` · ``num_files`` are kept (256 MiB by default, the newest).

    Args:
        every_steps: log on every so many steps.
        groups_per_step: prompts logged of such a step.
        samples_per_group: completions logged of each: the best, the worst, then others in order.
        max_characters: longer prompts and completions are cut in the middle; 0 keeps them whole.
        max_tokens: id, version and log-prob of each token are logged where at most so many were drawn; 0 logs none.
        max_mib: size in MiB at which the file is moved to ``samples.jsonl.1`` and begun anew.
        num_files: kept, the one being written included; older ones are deleted.
        file_name: in the run's directory.
    """

    def __init__(
        self,
        *,
        every_steps: int = 1,
        groups_per_step: int = 1,
        samples_per_group: int = 2,
        max_characters: int = 20_000,
        max_tokens: int = 4096,
        max_mib: float = 64.0,
        num_files: int = 4,
        file_name: str = "samples.jsonl",
    ) -> None:
        for name, value, least in (
            ("every_steps", every_steps, 1),
            ("groups_per_step", groups_per_step, 1),
            ("samples_per_group", samples_per_group, 1),
            ("max_characters", max_characters, 0),
            ("max_tokens", max_tokens, 0),
            ("num_files", num_files, 2),
        ):
            if value < least:
                raise ValueError(f"{name} must be >= {least}, got {value}")
        if not max_mib > 0:
            raise ValueError(f"max_mib must be > 0, got {max_mib}")
        self.every_steps = every_steps
        self.groups_per_step = groups_per_step
        self.samples_per_group = samples_per_group
        self.max_characters = max_characters
        self.max_tokens = max_tokens
        self.max_mib = max_mib
        self.num_files = num_files
        self.file_name = file_name
        self._file: BoundedFile | None = None

    @property
    def writes(self) -> str:
        return self.file_name

    def setup(self, run_dir: Path, config: Mapping[str, Any], step: int) -> None:
        path = run_dir / self.file_name
        _forget_after(step, path)
        self._file = BoundedFile(path, max_bytes=int(self.max_mib * MIB), num_files=self.num_files)

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
                self._file.write(msgspec.json.encode(self._record(step, trajectory)) + b"\n")

    def close(self, status: str) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _record(self, step: int, trajectory: Trajectory) -> Sample:
        prompt = trajectory.prompt.example.prompt
        versions = trajectory.versions[trajectory.versions >= 0]
        completion = redact_text(trajectory.text)
        return Sample(
            step=step,
            source=trajectory.prompt.source,
            prompt_id=trajectory.prompt.prompt_id,
            sample=trajectory.sample,
            prompt=self._cut(redact_text(prompt)) if isinstance(prompt, str) else self._messages(prompt),
            completion=self._cut(completion),
            reward=None if trajectory.reward is None else float(trajectory.reward),
            unscored=_shown(trajectory.unscored),
            parts={_shown(name): float(value) for name, value in trajectory.reward_parts.items()},
            turn_rewards=list(map(float, trajectory.turn_rewards)),
            step_scores=[float(step.value) for step in trajectory.step_scores],
            versions=[int(versions.min()), int(versions.max())] if versions.size else [],
            stop_reason=trajectory.stop_reason,
            num_tokens=len(trajectory.token_ids),
            num_generated=trajectory.num_generated,
            column="" if versions.size else _column(trajectory),
            tokens=self._tokens(trajectory) if completion == trajectory.text else None,
        )

    def _tokens(self, trajectory: Trajectory) -> Tokens | None:
        """Of every drawn token id, log-prob and version; they are a secret's too where the text holds one."""
        drawn = trajectory.loss_mask
        if not 0 < trajectory.num_generated <= self.max_tokens:
            return None
        versions = trajectory.versions[drawn].tolist()
        logprobs = zip(trajectory.logprobs[drawn].tolist(), versions, strict=True)
        return Tokens(
            ids=trajectory.token_ids[drawn].tolist(),
            logprobs=[round(logprob, 3) if version >= 0 else None for logprob, version in logprobs],
            versions=[(version, len(list(run))) for version, run in groupby(versions)],
        )

    def _messages(self, prompt: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
        said = messages_of(prompt)
        return [{"role": _shown(role), "content": self._cut(redact_text(content))} for role, content in said]

    def _cut(self, text: str) -> str:
        text = whole_characters(text)
        if not self.max_characters or len(text) <= self.max_characters:
            return text
        half = self.max_characters // 2
        return f"{text[:half]} [... {len(text) - 2 * half} characters ...] {text[len(text) - half :]}"


def _column(trajectory: Trajectory) -> str:
    """The field of its row that holds its text; empty if none does."""
    fields = trajectory.prompt.fields.items()
    return _shown(next((name for name, value in fields if isinstance(value, str) and value == trajectory.text), ""))


def _shown(text: str) -> str:
    """Without secrets, and such that UTF-8 has it."""
    return redact_text(whole_characters(text))


def _forget_after(step: int, path: Path) -> None:
    """Leave the samples up to a step, as a resumed run needs; 0 leaves none. What follows a torn line goes too."""
    is_over = step <= 0
    for file in rotated(path):
        kept = b"" if is_over else b"".join(_lines_until(step, file))
        is_over = len(kept) < file.stat().st_size
        if not kept:
            file.unlink()
        elif is_over:  # replaced, not cut: somebody may look at it
            with replacing(file) as partial:
                partial.write_bytes(kept)


def _lines_until(step: int, path: Path) -> Iterator[bytes]:
    """The whole lines before the first of a later step."""
    with path.open("rb") as lines:
        for line in lines:
            with suppress(msgspec.DecodeError):  # somebody else's line
                if msgspec.json.decode(line, type=Head).step > step:
                    return
            if line.endswith(b"\n"):
                yield line


def _telling(trajectories: Sequence[Trajectory], num: int) -> list[Trajectory]:
    """The best, the worst, then others in order; at most ``num``, in sample order."""
    scored = [t for t in trajectories if t.reward is not None]
    extremes = [max(scored, key=_reward), min(scored, key=_reward)] if scored else []
    order = [*extremes, *trajectories]
    distinct = list({id(t): t for t in order}.values())[:num]
    return sorted(distinct, key=lambda t: t.sample)


def _reward(trajectory: Trajectory) -> float:
    return -math.inf if trajectory.reward is None or math.isnan(trajectory.reward) else trajectory.reward
