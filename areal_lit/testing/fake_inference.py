"""FakeBackend: an inference backend without a model, on a clock of its own and with faults on demand.

Shapes: n tokens of one sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from areal_lit.contracts.inference import InferenceBackend
from areal_lit.types import Completion, FloatArray, GenerateRequest, IntArray, ModelSpec, StopReason, WeightSource

if TYPE_CHECKING:
    from areal_lit.contracts.launcher import Process, ProcessSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong in a ``FakeBackend``. Requests are counted from 0 over the backend's life.

    Args:
        raise_on: these requests raise RuntimeError.
        hang_on: these never end.
        garbage_on: these return more log-probs than tokens, NaN among them.
        slow_on: these take ``slow_s`` longer.
        die_on: with this request the engine is gone: it, all pending and all later ones raise ConnectionError.
        fail_updates: updates to these versions raise.
    """

    raise_on: frozenset[int] = frozenset()
    hang_on: frozenset[int] = frozenset()
    garbage_on: frozenset[int] = frozenset()
    slow_on: frozenset[int] = frozenset()
    slow_s: float = 1.0
    die_on: int | None = None
    fail_updates: frozenset[int] = frozenset()


def hashed(*parts: int | NDArray[Any]) -> NDArray[np.uint64]:
    """Integers mixed into ones that look random, elementwise (splitmix64's finaliser)."""
    x = np.zeros(1, np.uint64)
    for part in parts:
        number = np.uint64(part & 0xFFFFFFFFFFFFFFFF) if isinstance(part, int) else part.astype(np.uint64)
        x = (x + number) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(1)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    return x


def fake_logprobs(version: int, token_ids: IntArray) -> FloatArray:
    """The fake's log-prob of each token, a function of version, position and token; 0 for the first, [n]."""
    logprobs = _drawn_logprobs(hashed(version, np.arange(len(token_ids)), token_ids))
    logprobs[:1] = 0.0
    return logprobs


def _drawn_logprobs(bits: NDArray[np.uint64]) -> FloatArray:
    return (-0.1 - 4.0 * (bits >> np.uint64(40)).astype(np.float64) / 2**24).astype(np.float32)


@dataclass(slots=True, eq=False)
class _Running:
    """A request on the token clock: what it will have drawn, and since when it draws."""

    future: asyncio.Future[Completion]
    whole: Completion
    started: float
    timer: asyncio.TimerHandle | None = None


class FakeBackend(InferenceBackend):
    """Draws pseudo-random tokens on a clock: token = f(seed, version, position), no model and no process.

    Args:
        vocab_size: tokens are drawn evenly from [0, vocab_size), so lengths are geometric with this mean.
        end_token_id: ends a completion unless the request ignores it.
        max_length: prompt and budget together may not exceed it.
        seconds_per_token: of the clock; 0 completes requests at once.
        start_version: version held before the first update; None refuses to generate until then.
        faults: what goes wrong.
        runs_receivers: read updates through the source's receiver; off, versions just change.
    """

    receivers: ClassVar[frozenset[str]] = frozenset({"*"})

    def __init__(
        self,
        *,
        vocab_size: int = 64,
        end_token_id: int = 1,
        max_length: int = 4096,
        seconds_per_token: float = 0.0,
        start_version: int | None = None,
        faults: Faults = Faults(),
        runs_receivers: bool = True,
    ) -> None:
        self.vocab_size = vocab_size
        self.end_token_id = end_token_id
        self.max_length = max_length
        self.seconds_per_token = seconds_per_token
        self.faults = faults
        self.runs_receivers = runs_receivers
        self.version = start_version
        self.num_requests = 0
        self.updates: list[int] = []
        self._running: set[_Running] = set()
        self._open = True
        self._resumed: asyncio.Event | None = None
        self._receivers: dict[str, Any] = {}

    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        """None: it lives in the controller."""
        return ()

    async def connect(self, processes: Sequence[Process]) -> None:
        """Nothing to wait for."""

    async def generate(self, request: GenerateRequest) -> Completion:
        """Complete a request as the clock and the faults have it."""
        index, self.num_requests = self.num_requests, self.num_requests + 1
        if self.faults.die_on is not None and index >= self.faults.die_on:
            await self.close()
        if index in self.faults.raise_on:
            raise RuntimeError(f"injected fault: request {index} raises")
        if index in self.faults.hang_on:
            await asyncio.get_running_loop().create_future()
        if index in self.faults.slow_on:
            await asyncio.sleep(self.faults.slow_s)
        while self._resumed is not None:
            await self._resumed.wait()
        completion = await self._draw(request)
        if index in self.faults.garbage_on:
            return replace(completion, logprobs=np.full(len(completion.token_ids) + 1, np.nan, np.float32))
        return completion

    async def _draw(self, request: GenerateRequest) -> Completion:
        self._check(request)
        whole = self._whole(request)
        if self.seconds_per_token == 0:
            await asyncio.sleep(0)
            return whole
        loop = asyncio.get_running_loop()
        running = _Running(loop.create_future(), whole, loop.time())
        running.timer = loop.call_later(len(whole.token_ids) * self.seconds_per_token, self._end, running, whole)
        self._running.add(running)
        try:
            return await running.future
        finally:
            running.timer.cancel()
            self._running.discard(running)

    def _check(self, request: GenerateRequest) -> None:
        if not self._open:
            raise ConnectionError("the fake engine is gone")
        if self.version is None:
            raise RuntimeError("no weights are confirmed yet: update_weights must succeed before generate")
        length = len(request.token_ids) + request.sampling.max_new_tokens
        if length > self.max_length or not len(request.token_ids):
            raise ValueError(f"prompt and budget must be in [2, {self.max_length}] tokens together, got {length}")

    def _whole(self, request: GenerateRequest) -> Completion:
        """What the request draws if nothing interrupts it."""
        assert self.version is not None
        sampling, start = request.sampling, len(request.token_ids)
        position = np.arange(start, start + sampling.max_new_tokens)
        seed = 0 if sampling.temperature == 0 else request.seed
        token_ids = (hashed(seed, self.version, position) % np.uint64(self.vocab_size)).astype(np.int64)
        ends = np.isin(token_ids, (self.end_token_id, *sampling.stop_token_ids)).nonzero()[0]
        reason: StopReason = "length"
        if ends.size and not sampling.ignore_eos:
            token_ids, reason = token_ids[: ends[0] + 1], "stop"
        sequence = np.concatenate([request.token_ids, token_ids])
        return Completion(
            token_ids=token_ids, logprobs=fake_logprobs(self.version, sequence)[start:],
            versions=np.full(len(token_ids), self.version), stop_reason=reason,
        )  # fmt: skip

    @staticmethod
    def _end(running: _Running, completion: Completion) -> None:
        if not running.future.done():
            running.future.set_result(completion)

    def _interrupt(self) -> None:
        """End what runs with the tokens the clock has drawn so far, one at least."""
        now = asyncio.get_running_loop().time()
        for running in self._running:
            drawn = max(1, int((now - running.started) / self.seconds_per_token))
            whole = running.whole
            if drawn < len(whole.token_ids):
                partial = Completion(
                    token_ids=whole.token_ids[:drawn], logprobs=whole.logprobs[:drawn],
                    versions=whole.versions[:drawn], stop_reason="interrupted",
                )  # fmt: skip
                self._end(running, partial)
            else:
                self._end(running, whole)

    async def update_weights(self, source: WeightSource) -> None:
        """Take a version; through the source's receiver if it names one."""
        if source.version == self.version:
            return
        if source.version in self.faults.fail_updates:
            raise RuntimeError(f"injected fault: the update to version {source.version} fails")
        self._interrupt()
        if source.receiver and self.runs_receivers:
            await asyncio.to_thread(self._receive, source)
        self.version = source.version
        self.updates.append(source.version)

    def _receive(self, source: WeightSource) -> None:
        import importlib

        if source.receiver not in self._receivers:
            module, _, name = source.receiver.partition(":")
            self._receivers[source.receiver] = getattr(importlib.import_module(module), name)()
        for _ in self._receivers[source.receiver].receive(source.params, 0, RECEIVE_TIMEOUT_S):
            pass

    async def pause(self, mode: Literal["interrupt", "drain"]) -> None:
        """Hold new requests; interrupt or await what runs."""
        self._resumed = self._resumed or asyncio.Event()
        if mode == "interrupt":
            self._interrupt()
        running = [running.future for running in self._running]
        if running:
            await asyncio.wait(running)

    async def resume(self) -> None:
        """Let what waits go on."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None

    async def close(self) -> None:
        """Pending and later requests raise ConnectionError."""
        self._open = False
        for running in self._running:
            if not running.future.done():
                running.future.set_exception(ConnectionError("the fake engine is gone"))
        await self.resume()

    async def score(self, token_ids: IntArray, *, temperature: float = 1.0) -> FloatArray:
        """The same log-probs that ``generate`` reports, whatever the temperature."""
        assert self.version is not None, "no weights are confirmed yet"
        return fake_logprobs(self.version, token_ids)

    async def score_topk(self, token_ids: IntArray, *, k: int, temperature: float = 1.0) -> tuple[IntArray, FloatArray]:
        """The likeliest by the same log-probs."""
        assert self.version is not None, "no weights are confirmed yet"
        position_n1, vocabulary = np.arange(len(token_ids))[:, None], np.arange(self.vocab_size)
        logprob_nV = _drawn_logprobs(hashed(self.version, position_n1, vocabulary))
        token_nk = np.argsort(-logprob_nV, axis=1, kind="stable")[:, :k] * (position_n1 > 0)
        return token_nk, np.take_along_axis(logprob_nV, token_nk, 1) * (position_n1 > 0)


RECEIVE_TIMEOUT_S = 60.0
