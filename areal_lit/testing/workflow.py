"""check_workflow: the conformance suite of workflows.

Every token of the fake engine is drawn with a log-prob of its own, so that it can be told in a trajectory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from areal_lit.contracts import Workflow
from areal_lit.testing.component import check_component, require
from areal_lit.text import TextCodec
from areal_lit.types import Completion, Example, IntArray, Prompt, Sampling, StopReason, Trajectory

DEADLINE_S = 30.0
DEFAULT_EXAMPLES = (Example(prompt="2+3=", fields={"answer": "5"}), Example(prompt="10+11=", fields={"answer": "21"}))


@dataclass
class ScriptedEpisode:
    """An episode whose engine draws random tokens, and remembers what it was asked and what it gave."""

    codec: TextCodec
    prompt: Prompt
    sample: int
    seed: int
    stop_reason: StopReason
    is_eval: bool = False
    sampling: Sampling = field(default_factory=lambda: Sampling(max_new_tokens=8))
    error: BaseException | None = None
    hangs: bool = False
    calls: list[tuple[IntArray, Completion]] = field(default_factory=list)
    remaining_s: float = DEADLINE_S

    def __post_init__(self) -> None:
        self.prompt_ids = self.codec.encode_prompt(self.prompt.example)
        self.prompt_ids.setflags(write=False)

    @property
    def version(self) -> int:
        return 3 + len(self.calls)

    async def generate(self, token_ids: IntArray, **overrides: Any) -> Completion:
        """A few tokens of the vocabulary; the order in which concurrent episodes go on is mixed."""
        sampling = replace(self.sampling, **overrides)
        for _ in range(1 + self.seed % 3):
            await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        draw = np.random.default_rng([self.seed, len(self.calls)])
        num = int(draw.integers(1, sampling.max_new_tokens + 1))
        drawn = sum(len(completion.token_ids) for _, completion in self.calls)
        completion = Completion(
            token_ids=draw.integers(0, len(self.codec.tokenizer), num),
            logprobs=(-(1 + drawn + np.arange(num) + 4096 * self.sample) / 4096).astype(np.float32),
            versions=np.full(num, self.version),
            stop_reason=self.stop_reason,
        )
        self.calls.append((np.array(token_ids, dtype=np.int64), completion))
        return completion

    async def score(self, trajectory: Trajectory) -> Trajectory:
        await asyncio.sleep(0)
        return replace(trajectory, reward=0.5)

    def trajectory(self, prompt: Prompt, token_ids: IntArray, completion: Completion) -> Trajectory:
        num_prompt = len(token_ids)
        return Trajectory(
            token_ids=np.concatenate([token_ids, completion.token_ids]),
            loss_mask=np.concatenate([np.zeros(num_prompt, bool), np.ones(len(completion.token_ids), bool)]),
            logprobs=np.concatenate([np.zeros(num_prompt, np.float32), completion.logprobs]),
            versions=np.concatenate([np.full(num_prompt, -1), completion.versions]),
            prompt=prompt,
            text=self.codec.decode(completion.token_ids),
            stop_reason=completion.stop_reason,
            temperature=self.sampling.temperature,
            sample=self.sample,
        )


def check_workflow(
    make: Callable[[], Workflow], codec: TextCodec, *, examples: Sequence[Example] = DEFAULT_EXAMPLES
) -> None:
    """Raise AssertionError unless the workflow's trajectories hold exactly what the engine was asked and drew.

    ::

        def test_workflow(tmp_path):
            check_workflow(MyWorkflow, TextCodec(tiny_spec(tmp_path)))

    Args:
        make: constructs the workflow.
        codec: whose decode and encode should not be each other's inverse, as that of ``tiny_spec``.
        examples: prompts to run, with the fields that the workflow needs.
    """
    asyncio.run(_check(check_component(make, "workflow"), codec, examples))


async def _check(workflow: Workflow, codec: TextCodec, examples: Sequence[Example]) -> None:
    prompts = [
        Prompt(prompt_id=index, source="test", row=index, epoch=0, example=example)
        for index, example in enumerate(examples)
    ]
    reasons: tuple[StopReason, ...] = ("stop", "length")
    episodes = [
        (prompt, ScriptedEpisode(codec, prompt, sample, 10 * prompt.prompt_id + sample, reasons[sample % 2]))
        for prompt in prompts
        for sample in range(4)
    ]
    async with _Deadline("several episodes of one instance at once"):
        results = await asyncio.gather(*(workflow.run(prompt, episode) for prompt, episode in episodes))
    for (prompt, episode), result in zip(episodes, results, strict=True):
        _check_result(result, prompt, episode)
    await _check_error(workflow, prompts[0], codec)
    await _check_cancel(workflow, prompts[0], codec)


def _check_result(result: Any, prompt: Prompt, episode: ScriptedEpisode) -> None:
    require(
        result is None or isinstance(result, Trajectory | list),
        f"run() must return a Trajectory, a list of them or None, got {type(result).__name__}",
    )
    trajectories = result if isinstance(result, list) else [] if result is None else [result]
    for trajectory in trajectories:
        require(isinstance(trajectory, Trajectory), f"run() returned a list with a {type(trajectory).__name__} in it")
        require(
            trajectory.prompt is prompt,
            "the trajectory's prompt must be the prompt that was run (it carries the group)",
        )
        require(
            trajectory.sample == episode.sample,
            f"the trajectory's sample must be {episode.sample}, the episode's, got {trajectory.sample}",
        )
        _check_tokens(trajectory, episode)


def _check_tokens(trajectory: Trajectory, episode: ScriptedEpisode) -> None:
    num = len(trajectory.token_ids)
    for name in ("loss_mask", "logprobs", "versions"):
        length = len(getattr(trajectory, name))
        require(length == num, f"{name} must have one entry per token, {num}, got {length}")
    mask = trajectory.loss_mask
    require(mask.dtype == np.bool_, f"loss_mask must be boolean, got {mask.dtype}")
    require(mask.any(), "no token of the trajectory is trained; return None to drop an episode")
    require(not mask[0], "the first token has nothing before it and cannot be trained")
    require((trajectory.logprobs[~mask] == 0).all(), "logprobs must be 0 where loss_mask is False")
    require((trajectory.versions[~mask] == -1).all(), "versions must be -1 where loss_mask is False")
    last: Completion | None = None
    position = 0
    while position < num:
        if not mask[position]:
            position += 1
            continue
        context, completion = _drawn_at(trajectory, position, episode)
        require(
            np.array_equal(trajectory.token_ids[:position], context),
            f"the engine drew token {position} after other tokens than stand before it in the trajectory; keep the ids "
            "that were sent and received, never decode and encode again",
        )
        position += _check_run(trajectory, position, completion)
        last = completion
    assert last is not None
    require(
        trajectory.stop_reason == last.stop_reason,
        f"stop_reason must be carried from the last completion, {last.stop_reason!r}, got {trajectory.stop_reason!r}",
    )


def _drawn_at(trajectory: Trajectory, position: int, episode: ScriptedEpisode) -> tuple[IntArray, Completion]:
    """The engine's call whose first token stands here."""
    logprob = np.float32(trajectory.logprobs[position])
    for context, completion in episode.calls:
        if completion.logprobs[0] == logprob:
            return context, completion
    raise AssertionError(
        f"trained token {position} with log-prob {logprob} is not the start of a completion that the engine gave to "
        "this episode; mark only drawn tokens in loss_mask and keep no state of an episode on the workflow"
    )


def _check_run(trajectory: Trajectory, position: int, completion: Completion) -> int:
    """How many of the completion's tokens stand here, each with its id, log-prob and version."""
    num = min(len(completion.token_ids), len(trajectory.token_ids) - position)
    run = slice(position, position + num)
    kept = int(trajectory.loss_mask[run].argmin()) if not trajectory.loss_mask[run].all() else num
    run = slice(position, position + kept)
    for name, given in (
        ("token_ids", completion.token_ids), ("logprobs", completion.logprobs), ("versions", completion.versions)
    ):  # fmt: skip
        require(
            np.array_equal(getattr(trajectory, name)[run], given[:kept]),
            f"{name} of the trained tokens from {position} must be what the engine drew, {given[:kept].tolist()}, "
            f"got {getattr(trajectory, name)[run].tolist()}",
        )
    return kept


async def _check_error(workflow: Workflow, prompt: Prompt, codec: TextCodec) -> None:
    broken = ScriptedEpisode(
        codec, prompt, sample=0, seed=0, stop_reason="stop", error=ConnectionError("the engine is gone")
    )
    async with _Deadline("an episode whose engine is gone"):
        try:
            result = await workflow.run(prompt, broken)
        except ConnectionError:
            return
    raise AssertionError(
        f"the engine's ConnectionError must leave run(), which returned {result!r:.80}; retries and the failure budget "
        "are the core's"
    )


async def _check_cancel(workflow: Workflow, prompt: Prompt, codec: TextCodec) -> None:
    episode = ScriptedEpisode(codec, prompt, sample=0, seed=0, stop_reason="stop", hangs=True)
    task = asyncio.ensure_future(_run(workflow, prompt, episode))
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    async with _Deadline("a cancelled episode"):
        await asyncio.wait([task])
    require(task.cancelled(), "run() must let CancelledError through: the core cancels episodes at their deadline")


async def _run(workflow: Workflow, prompt: Prompt, episode: ScriptedEpisode) -> object:
    return await workflow.run(prompt, episode)


class _Deadline:
    """``asyncio.timeout`` whose error names what was waited for."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._timeout = asyncio.timeout(DEADLINE_S)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError as late:
            raise AssertionError(f"{self._what}: run() did not end within {DEADLINE_S:.0f} s") from late
