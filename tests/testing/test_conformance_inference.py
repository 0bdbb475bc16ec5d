"""The inference suite passes the fake, and fails every planted bug."""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_lit.testing.fake_inference import FakeBackend, Faults, fake_logprobs
from areal_lit.testing.inference import check_inference
from areal_lit.types import Completion, GenerateRequest, Sampling, WeightSource

PROMPT = np.asarray([5, 6, 7, 8])


def publish(version: int) -> WeightSource:
    return WeightSource(version=version, receiver="", params={"weights_of": version})


class Skipping(selectors.DefaultSelector):
    """Waits for nothing, and knows how long it should have waited."""

    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.skipped_s += timeout or 0.0
        return super().select(0)


class TimelessLoop(asyncio.SelectorEventLoop):
    """On its clock nothing takes time but waiting, so a busy machine changes nothing."""

    def __init__(self) -> None:
        self.selector = Skipping()
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.skipped_s


def run(backend: FakeBackend) -> None:
    with asyncio.Runner(loop_factory=TimelessLoop) as runner:
        runner.run(
            check_inference(
                backend,
                publish=publish,
                reference=lambda version, token_ids, temperature: fake_logprobs(version, token_ids),
                prompt=PROMPT,
                max_length=200,
                timeout_s=1.5,
            )
        )


def fake(kind: type[FakeBackend] = FakeBackend, **options: Any) -> FakeBackend:
    return kind(max_length=200, seconds_per_token=0.0005, **options)


class EchoesPrompt(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        c = await super().generate(request)
        n = len(request.token_ids)
        return Completion(
            token_ids=np.concatenate([request.token_ids, c.token_ids]),
            logprobs=np.concatenate([np.zeros(n, np.float32), c.logprobs]),
            versions=np.concatenate([np.full(n, -1), c.versions]),
            stop_reason=c.stop_reason,
        )


class OverrunsBudget(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        more = replace(request.sampling, max_new_tokens=request.sampling.max_new_tokens + 1)
        return await super().generate(replace(request, sampling=more))


class GuessesStopReason(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        c = await super().generate(request)
        full = len(c.token_ids) == request.sampling.max_new_tokens
        return replace(c, stop_reason="length" if full else c.stop_reason)


class StampsOnReturn(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        c = await super().generate(request)
        await asyncio.sleep(0.001)
        return replace(c, versions=np.full(len(c.token_ids), self.version))


class KeepsOldPrefix(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        c = await super().generate(request)
        old = max(1, (self.version or 0) - 1)
        sequence = np.concatenate([request.token_ids, c.token_ids])
        return replace(c, logprobs=fake_logprobs(old, sequence)[len(request.token_ids) :])


class IgnoresSeeds(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await super().generate(replace(request, seed=0))


class DependsOnCompany(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        return await super().generate(replace(request, seed=request.seed + len(self._running)))


class AppliesTwice(FakeBackend):
    async def update_weights(self, source: WeightSource) -> None:
        await super().update_weights(source)
        self.weights = source.params["weights_of"]

    async def generate(self, request: GenerateRequest) -> Completion:
        c = await super().generate(request)
        sequence = np.concatenate([request.token_ids, c.token_ids])
        return replace(c, logprobs=fake_logprobs(self.weights, sequence)[len(request.token_ids) :])


class NeverPauses(FakeBackend):
    async def pause(self, mode: Any) -> None:
        return


class DoesNotQueue(FakeBackend):
    async def pause(self, mode: Any) -> None:
        await super().pause(mode)
        await super().resume()


class InterruptsOnDrain(FakeBackend):
    async def pause(self, mode: Any) -> None:
        await super().pause("interrupt")


class ReturnsFromDrainAtOnce(FakeBackend):
    async def pause(self, mode: Any) -> None:
        if mode == "interrupt":
            await super().pause(mode)


class TakesAnyLength(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        self.max_length = max(200, len(request.token_ids) + request.sampling.max_new_tokens)
        return await super().generate(request)


class GeneratesTooEarly(FakeBackend):
    async def generate(self, request: GenerateRequest) -> Completion:
        self.version = self.version or 0
        return await super().generate(request)


class HangsOnClose(FakeBackend):
    async def close(self) -> None:
        self.faults = Faults(hang_on=frozenset(range(10_000)))


class QueuesUrgentLast(FakeBackend):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.slots = asyncio.Semaphore(8)

    async def generate(self, request: GenerateRequest) -> Completion:
        async with self.slots:
            return await super().generate(request)


class ScoresShifted(FakeBackend):
    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        return np.roll(await super().score(token_ids, temperature=temperature), 1)


def test_the_fake_conforms() -> None:
    run(fake())


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (EchoesPrompt, "check_budget"),
        (OverrunsBudget, "check_budget"),
        (GuessesStopReason, "check_stop"),
        (StampsOnReturn, "check_update_in_flight"),
        (KeepsOldPrefix, "check_prefix"),
        (IgnoresSeeds, "check_seeds"),
        (DependsOnCompany, "check_seeds"),
        (AppliesTwice, "check_idempotent"),
        (NeverPauses, "check_interrupt"),
        (DoesNotQueue, "check_pause_queues"),
        (InterruptsOnDrain, "check_drain"),
        (ReturnsFromDrainAtOnce, "check_drain"),
        (TakesAnyLength, "check_refusals"),
        (GeneratesTooEarly, "before the first update"),
        (HangsOnClose, "check_close"),
        (QueuesUrgentLast, "check_urgent"),
        (ScoresShifted, "check_score"),
    ],
)
def test_a_planted_bug_fails(kind: type[FakeBackend], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        run(fake(kind))


@pytest.mark.parametrize(
    "faults",
    [
        Faults(raise_on=frozenset({3})),
        Faults(garbage_on=frozenset({3})),
        Faults(hang_on=frozenset({3})),
        Faults(die_on=3),
        Faults(fail_updates=frozenset({2})),
    ],
)
def test_each_injected_fault_is_noticed(faults: Faults) -> None:
    with pytest.raises(AssertionError, match="breaks"):
        run(fake(faults=faults))


def request(**options: Any) -> GenerateRequest:
    values: dict[str, Any] = {"request_id": "r", "token_ids": PROMPT, "sampling": Sampling(max_new_tokens=9), "seed": 1}
    return GenerateRequest(**{**values, **options})


async def test_the_fake_without_a_clock_completes_at_once_and_repeats() -> None:
    backend = FakeBackend(start_version=0)
    first, second = await asyncio.gather(backend.generate(request()), backend.generate(request()))
    assert first.token_ids.tolist() == second.token_ids.tolist()
    assert first.versions.tolist() == [0] * len(first.token_ids)


async def test_a_dead_fake_fails_pending_and_later_requests() -> None:
    backend = FakeBackend(start_version=0, seconds_per_token=10.0, faults=Faults(die_on=1))
    pending = asyncio.create_task(backend.generate(request()))
    await asyncio.sleep(0)
    for call in (backend.generate(request()), pending, backend.generate(request())):
        with pytest.raises(ConnectionError, match="gone"):
            await call


@given(seed=st.integers(), version=st.integers(0, 50), cut=st.integers(1, 19))
def test_the_fake_draws_by_seed_version_and_position_alone(seed: int, version: int, cut: int) -> None:
    async def draw(token_ids: np.ndarray, budget: int) -> Completion:
        sampling = Sampling(max_new_tokens=budget, ignore_eos=True)
        return await FakeBackend(start_version=version).generate(
            request(token_ids=token_ids, sampling=sampling, seed=seed)
        )

    whole = asyncio.run(draw(PROMPT, 20))
    rest = asyncio.run(draw(np.concatenate([PROMPT, whole.token_ids[:cut]]), 20 - cut))
    assert rest.token_ids.tolist() == whole.token_ids[cut:].tolist()
    assert rest.logprobs.tolist() == whole.logprobs[cut:].tolist()
