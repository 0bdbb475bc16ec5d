"""RolloutEpisode: what a workflow is handed.

Shapes: n tokens of one sequence, p of them prompt.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import numpy as np

from areal_lit.rollout.limits import PromptTooLong, completion_problem
from areal_lit.rollout.plans import GroupPlan
from areal_lit.seeds import stable_seed
from areal_lit.types import Completion, GenerateRequest, IntArray, Prompt, Trajectory


class RolloutEpisode:
    """One sample of a prompt. See ``contracts.workflow.Episode``.

    Args:
        deadline: in the event loop's time.
        attempt: from 1; a retried episode draws with the same seeds.
    """

    __slots__ = (
        "_deadline", "_loop", "_name", "_plan", "_services", "_temperature", "_turn", "codec", "fatal", "is_eval",
        "sample", "sampling", "seed",
    )  # fmt: skip

    def __init__(
        self, plan: GroupPlan, *, sample: int, attempt: int, deadline: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.sample = sample
        self.is_eval = plan.is_eval
        self.sampling = plan.sampling
        self.codec = plan.services.codec
        self.seed = _seed(plan, sample)
        self.fatal: BaseException | None = None
        self._plan = plan
        self._services = plan.services
        self._name = f"{plan.name}.{sample}.{attempt}"
        self._turn = 0
        self._temperature = plan.sampling.temperature
        self._deadline = deadline
        self._loop = loop

    @property
    def version(self) -> int:
        """Version of the weights the engine holds now."""
        return self._services.version

    @property
    def remaining_s(self) -> float:
        """Seconds until this episode's deadline."""
        return self._deadline - self._loop.time()

    @property
    def prompt_ids(self) -> IntArray:
        """Tokens of the prompt, encoded once for all samples, read-only, [p]."""
        return self._plan.prompt_ids

    async def generate(self, token_ids: IntArray, **overrides: Any) -> Completion:
        """Continue these tokens. An interrupted request is sent again with what it has and the budget that is left."""
        sampling = replace(self.sampling, **overrides) if overrides else self.sampling
        self._temperature = sampling.temperature
        turn = self._turn
        self._turn += 1
        self._check_fits(len(token_ids), sampling.max_new_tokens, turn)
        request = GenerateRequest(
            request_id=f"{self._name}.{turn}", token_ids=token_ids, sampling=sampling,
            seed=stable_seed(self.seed, turn), prefix_group=self._plan.name,
        )  # fmt: skip
        completion = await self._services.backend.generate(request)
        self._check(completion, sampling.max_new_tokens)
        if completion.stop_reason != "interrupted":
            return completion
        return await self._resume(request, [completion])

    async def _resume(self, request: GenerateRequest, parts: list[Completion]) -> Completion:
        """Go on after ``pause`` until the request ends. The seed of a part depends on where it begins: the
        random numbers of the first part are not drawn again."""
        while parts[-1].stop_reason == "interrupted":
            # an engine that hands back nothing must not keep the loop from reaching the deadline
            await asyncio.sleep(0)
            generated = sum(len(part.token_ids) for part in parts)
            remaining = request.sampling.max_new_tokens - generated
            if remaining == 0:
                return _join(parts, stop_reason="length")
            again = replace(
                request,
                token_ids=np.concatenate([request.token_ids, *(part.token_ids for part in parts)]),
                sampling=replace(request.sampling, max_new_tokens=remaining),
                seed=stable_seed(request.seed, generated) if generated else request.seed,
            )
            part = await self._services.backend.generate(again)
            self._check(part, remaining)
            parts.append(part)
        return _join(parts, stop_reason=parts[-1].stop_reason)

    async def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its reward, for workflows that go on depending on it."""
        if self._plan.reward is None:
            raise ValueError(
                f"{type(self._plan.workflow).__name__} asked for a score, but the run has no reward; name one"
            )
        try:
            return (await self._services.score(self._plan.reward, [trajectory]))[0]
        except Exception as error:
            self.fatal = error  # scoring turns what may fail into Unscored: this is meant to end the run
            raise

    def trajectory(self, prompt: Prompt, token_ids: IntArray, completion: Completion) -> Trajectory:
        """The unscored trajectory of one completion after ``token_ids``."""
        p, n = len(token_ids), len(token_ids) + len(completion.token_ids)
        loss_mask = np.zeros(n, dtype=np.bool_)
        loss_mask[p:] = True
        logprobs = np.zeros(n, dtype=np.float32)
        logprobs[p:] = completion.logprobs
        versions = np.full(n, -1, dtype=np.int64)
        versions[p:] = completion.versions
        return Trajectory(
            token_ids=np.concatenate((token_ids, completion.token_ids)), loss_mask=loss_mask, logprobs=logprobs,
            versions=versions, prompt=prompt, text=self.codec.decode(completion.token_ids),
            stop_reason=completion.stop_reason, temperature=self._temperature, sample=self.sample,
            rollout_id=self._name,
        )  # fmt: skip

    def _check_fits(self, num_tokens: int, budget: int, turn: int) -> None:
        """Refuse what the model cannot continue; no engine need know. A later turn's is the workflow's own failure."""
        limits = self._services.limits
        if limits.max_tokens is None or num_tokens + budget <= limits.max_tokens:
            return
        prompt = self._plan.prompt
        raise (ValueError if turn else PromptTooLong)(
            f"row {prompt.row} of source {prompt.source!r}: {num_tokens} {'' if turn else 'prompt '}tokens and "
            f"max_new_tokens {budget} are more than {limits.max_tokens}, {limits.max_tokens_rule}; lower "
            "max_new_tokens, leave long prompts out (max_prompt_tokens of the data) or have them dropped "
            "(rollout.long_prompts)"
        )

    def _check(self, completion: Completion, budget: int) -> None:
        problem = completion_problem(completion, budget=budget, limits=self._services.limits)
        if problem:
            raise ValueError(f"{type(self._services.backend).__name__} returned {problem}; it is not trained on")


def _seed(plan: GroupPlan, sample: int) -> int:
    """Of an episode: equal for equal (run, prompt, sample), and not shared between training and evaluation."""
    return stable_seed(plan.services.seed, "eval" if plan.is_eval else "train", plan.prompt.prompt_id, sample)


def _join(parts: list[Completion], *, stop_reason: Any) -> Completion:
    return Completion(
        token_ids=np.concatenate([part.token_ids for part in parts]),
        logprobs=np.concatenate([part.logprobs for part in parts]),
        versions=np.concatenate([part.versions for part in parts]),
        stop_reason=stop_reason,
    )
