"""GroupPlan: how a prompt is rolled out, and with what.

Shapes: p tokens of a prompt.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping

from areal_lit.contracts.data import Source
from areal_lit.contracts.inference import InferenceBackend
from areal_lit.contracts.reward import Reward
from areal_lit.contracts.workflow import Workflow
from areal_lit.rollout.limits import Limits
from areal_lit.rollout.settings import Rollout
from areal_lit.text import TextCodec
from areal_lit.types import IntArray, Prompt, Sampling, Trajectory

ScoreFn = Callable[[Reward, list[Trajectory]], Awaitable[list[Trajectory]]]


class EpisodeServices:
    """What all episodes of a run share. ``version`` is that of the weights the engine holds now.

    ``limits`` are what an episode's requests and answers are held to.
    """

    __slots__ = ("backend", "codec", "limits", "score", "seed", "version")

    def __init__(self, *, backend: InferenceBackend, codec: TextCodec, score: ScoreFn, seed: int, version: int) -> None:
        self.backend = backend
        self.codec = codec
        self.score = score
        self.seed = seed
        self.version = version
        self.limits = Limits()


class GroupPlan:
    """One prompt on its way through the engine: who runs it, scores it, and how it is sampled.

    Args:
        name: unique within the run; requests are named after it, and its samples share their prefix by it.
    """

    __slots__ = ("_prompt_ids", "is_eval", "name", "prompt", "reward", "samples", "sampling", "services", "workflow")

    def __init__(
        self, *, prompt: Prompt, name: str, workflow: Workflow, reward: Reward | None, sampling: Sampling,
        samples: int, is_eval: bool, services: EpisodeServices,
    ) -> None:  # fmt: skip
        self.prompt = prompt
        self.name = name
        self.workflow = workflow
        self.reward = reward
        self.sampling = sampling
        self.samples = samples
        self.is_eval = is_eval
        self.services = services
        self._prompt_ids: IntArray | None = None

    @property
    def prompt_ids(self) -> IntArray:
        """Tokens of the prompt, encoded once for all samples, read-only, [p]."""
        if self._prompt_ids is None:
            self._prompt_ids = _encoded(self.prompt, self.services.codec)
            self._prompt_ids.setflags(write=False)
        return self._prompt_ids


class GroupPlans:
    """Makes the plan of every group, under a name that no other group of the run has.

    Args:
        sources: of training prompts; their own workflow, reward and sampling take precedence over those given here.
    """

    def __init__(
        self, settings: Rollout, *, sources: Mapping[str, Source], services: EpisodeServices, workflow: Workflow,
        reward: Reward | None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._sources = sources
        self._services = services
        self._workflow = workflow
        self._reward = reward
        self._ordinal = itertools.count()

    def training(self, prompt: Prompt) -> GroupPlan:
        """Of a group that begins now."""
        settings, source = self._settings, self._sources[prompt.source]
        sampling = settings.sampling_at(self._services.version, source.sampling or settings.sampling)
        return self._plan(prompt, source, samples=settings.samples_per_group, sampling=sampling, is_eval=False)

    def evaluation(self, prompt: Prompt, source: Source, *, samples: int, sampling: Sampling) -> GroupPlan:
        """Of a group of an evaluation, whose lengths no warm-up limits."""
        return self._plan(prompt, source, samples=samples, sampling=sampling, is_eval=True)

    def _plan(self, prompt: Prompt, source: Source, *, samples: int, sampling: Sampling, is_eval: bool) -> GroupPlan:
        return GroupPlan(
            prompt=prompt, name=f"{'eval-' if is_eval else ''}{prompt.prompt_id}.{next(self._ordinal)}",
            workflow=source.workflow or self._workflow, reward=source.reward or self._reward, sampling=sampling,
            samples=samples, is_eval=is_eval, services=self._services,
        )  # fmt: skip


def _encoded(prompt: Prompt, codec: TextCodec) -> IntArray:
    """Tokens of a prompt. Raises ValueError naming its row when there are none."""
    row = f"row {prompt.row} of source {prompt.source!r}"
    try:
        token_ids = codec.encode_prompt(prompt.example)
    # tokenizers and chat templates raise whatever they like; the cause stays attached
    except Exception as error:
        raise ValueError(f"{row}: the prompt cannot be encoded: {type(error).__name__}: {error}") from error
    if not len(token_ids):
        raise ValueError(f"{row}: the prompt has no tokens, and generation needs one to start from; drop the row")
    return token_ids
