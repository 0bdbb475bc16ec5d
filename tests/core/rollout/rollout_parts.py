"""An engine that answers in letters, and a rollout loop around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from areal_lit.contracts import InferenceBackend, Process, ProcessSpec, Reward, Source
from areal_lit.rollout import Rollout, RolloutLoop
from areal_lit.text import TextCodec
from areal_lit.types import (
    Completion,
    Example,
    GenerateRequest,
    Group,
    ModelSpec,
    Trajectory,
    WeightSource,
    merge_metrics,
)


class LetterCodec(TextCodec):
    """Letters are tokens; counts how often a prompt was encoded."""

    def __init__(self) -> None:
        super().__init__(ModelSpec(path="letters"))
        self.num_encoded = 0

    def encode(self, text: str) -> np.ndarray:
        self.num_encoded += 1
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, token_ids: np.ndarray) -> str:
        return bytes(token_ids.astype(np.uint8)).decode()


class ScriptedEngine(InferenceBackend):
    """Answers with three tokens at the version it holds, unless ``answer`` says otherwise."""

    def __init__(self, answer: Callable[[GenerateRequest, int], Any] | None = None) -> None:
        self.answer = answer
        self.version = 0
        self.requests: list[GenerateRequest] = []

    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        return ()

    async def connect(self, processes: Sequence[Process]) -> None: ...

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        count = len(self.requests)
        await asyncio.sleep(0)
        if self.answer is not None:
            answer = self.answer(request, count)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer is not None:
                return answer
        return completion("abc", version=self.version)

    async def update_weights(self, source: WeightSource) -> None:
        self.version = source.version

    async def pause(self, mode: str) -> None: ...

    async def resume(self) -> None: ...

    async def close(self) -> None: ...


class Nothing(Reward):
    def score(self, trajectory: Trajectory) -> float:
        return 0.0


def completion(text: str, *, version: int = 0, stop_reason: Any = "stop") -> Completion:
    n = len(text)
    return Completion(
        token_ids=np.frombuffer(text.encode(), np.uint8).astype(np.int64), logprobs=np.full(n, -1.0, np.float32),
        versions=np.full(n, version, np.int64), stop_reason=stop_reason,
    )  # fmt: skip


async def by_sample(reward: Reward, trajectories: list[Trajectory]) -> list[Trajectory]:
    """The reward is the sample's index."""
    return [replace(t, reward=float(t.sample)) for t in trajectories]


def source(num: int, **keywords: Any) -> Source:
    return Source(examples=[Example(prompt=f"p{i}", fields={"row": i}) for i in range(num)], **keywords)


Make = Callable[..., RolloutLoop]


def settings(**keywords: Any) -> Rollout:
    values: dict[str, Any] = {"groups_per_step": 4, "samples_per_group": 2, "max_staleness": 0, "wait_timeout_s": 20.0}
    return Rollout(**{**values, **keywords})


def ids(groups: list[Group] | None) -> list[int]:
    assert groups is not None
    return [group.group_id for group in groups]


def values(loop: RolloutLoop) -> dict[str, float]:
    return {name: metric.value for name, metric in merge_metrics(loop.metrics()).items()}


def run_steps(loop: RolloutLoop, engine: ScriptedEngine, steps: range) -> list[list[Group]]:
    batches = []
    for step in steps:
        batch = loop.next_batch(step)
        assert batch is not None
        batches.append(batch)
        engine.version = step + 1
        loop.set_version(step + 1)
    return batches


def pending_ids(loop: RolloutLoop) -> list[int]:
    """Prompts that a checkpoint would give back."""
    return [place[0] for place in loop.state_dict()["stream"]["returned"]]


def straggling(row: int, release: asyncio.Event) -> Callable[[GenerateRequest, int], Any]:
    async def wait() -> Completion:
        await release.wait()
        return completion("old", version=0)

    def answer(request: GenerateRequest, count: int) -> Any:
        return wait() if request.token_ids.tolist() == [*f"p{row}".encode()] and not release.is_set() else None

    return answer


NUM_REQUESTS = 8
"""Of the first step of ``settings()``."""


def never(
    once_asked: Callable[[], None] = lambda: None, num_requests: int = NUM_REQUESTS
) -> Callable[[GenerateRequest, int], Any]:
    """No answer; ``once_asked`` is called, on the event loop, when the last of ``num_requests`` has come."""

    async def wait(count: int) -> None:
        if count == num_requests:
            once_asked()
        await asyncio.get_running_loop().create_future()

    return lambda request, count: wait(count)


def bad_row(row: int) -> Callable[[GenerateRequest, int], None]:
    def answer(request: GenerateRequest, count: int) -> None:
        if request.token_ids.tolist() == [*f"p{row}".encode()]:
            raise ValueError("prompt too long")

    return answer
