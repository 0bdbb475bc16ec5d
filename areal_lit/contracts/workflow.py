"""Workflow: one episode, from prompt to trajectories."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

from areal_lit.contracts.component import Component
from areal_lit.text import TextCodec
from areal_lit.types import Completion, IntArray, Prompt, Sampling, Trajectory


class Episode(Protocol):
    """What a workflow may use. One per sample of a prompt."""

    sample: int
    seed: int
    is_eval: bool
    sampling: Sampling
    codec: TextCodec

    @property
    def prompt_ids(self) -> IntArray:
        """Tokens of the group's prompt as the codec encodes it, once for all its samples; read-only, [n]."""

    @property
    def version(self) -> int:
        """Version of the weights the engine holds now."""

    @property
    def remaining_s(self) -> float:
        """Seconds until this episode's deadline."""

    async def generate(self, token_ids: IntArray, **overrides: Any) -> Completion:
        """Continue these tokens; fields of ``Sampling`` may be overridden. Survives interruptions."""

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its reward, for workflows that go on depending on it."""

    def trajectory(self, prompt: Prompt, token_ids: IntArray, completion: Completion) -> Trajectory:
        """The unscored trajectory of one completion after ``token_ids``."""


class Workflow(Component):
    """Turns one prompt into one trajectory (or several, or None to drop it). Called once per sample."""

    @property
    def rewards_turns(self) -> bool | None:
        """Whether trajectories may bring rewards of turns or steps, for validation; None, the default: not known."""
        return None

    @abstractmethod
    async def run(self, prompt: Prompt, episode: Episode) -> Trajectory | list[Trajectory] | None:
        """Run one episode on the event loop. Nothing may block; unscored trajectories are scored by the core."""
