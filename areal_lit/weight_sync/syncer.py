"""Weight sync: plan -> pause -> send and receive at once -> resume -> parity probe.

A failed sync ends the run: the engine may hold half of a version, and the first transfer may still be going on, so
nothing is ever posted again. Shapes: n tokens of one sequence.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from areal_lit.background import in_thread
from areal_lit.contracts.inference import InferenceBackend
from areal_lit.contracts.transport import WeightTransport
from areal_lit.types import (
    Completion,
    FloatArray,
    GenerateRequest,
    IntArray,
    Metric,
    Sampling,
    TensorInfo,
    WeightSource,
)
from areal_lit.weight_sync.mismatch import MismatchAlarm
from areal_lit.weight_sync.settings import WeightSync

_T = TypeVar("_T")


class WeightSyncError(RuntimeError):
    """A sync failed, timed out or left the engine with other weights than the trainer's."""


class LoopRun(Protocol):
    """Runs a coroutine on the rollout loop; raises TimeoutError naming ``what`` after ``timeout_s``."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float, what: str) -> Any: ...


Scored = tuple[IntArray, int, float]
"""Token ids of a whole sequence [n], how many of them are prompt, and the temperature."""

Forward = Callable[[Sequence[Scored]], Sequence[FloatArray]]
"""The trainer's log-probs of the tokens after each prompt, at that temperature."""


class WeightSyncer:
    """Brings the trainer's weights to the engine; used from the training thread.

    Args:
        settings: the recipe's ``sync``.
        loop_run: runs the backend's coroutines.
        send: starts ``WeightTransport.send`` on every rank; one future per rank.
        manifest: of the policy's weights.
        forward: the trainer's log-probs under its current weights, for probes.
        sync_mode: what happens to running requests: partial results (``interrupt``) or their end (``drain``).
        directory: for temporary files of the transport.
        dtype: the weights are served in.
        num_receivers: of all engines together (``InferenceBackend.num_receivers``).
    """

    def __init__(
        self,
        settings: WeightSync,
        *,
        transport: WeightTransport,
        backend: InferenceBackend,
        loop_run: LoopRun,
        send: Callable[[WeightSource], Sequence[Future[Any]]],
        manifest: Callable[[], tuple[TensorInfo, ...]],
        forward: Forward,
        sync_mode: Literal["interrupt", "drain"],
        directory: str,
        dtype: str,
        num_receivers: int = 1,
    ) -> None:
        self.settings = settings
        self.version: int | None = None
        self.num_syncs = 0
        self.num_receivers = num_receivers
        self._transport = transport
        self._backend = backend
        self._loop_run = loop_run
        self._send = send
        self._manifest = manifest
        self._forward = forward
        self._sync_mode = sync_mode
        self._directory = directory
        self._probe_prompts: list[IntArray] = []
        self._probe_tokens = settings.probe_tokens
        self._failed_version: int | None = None
        self._alarm = MismatchAlarm(settings, dtype=dtype)

    def set_probe_prompts(self, prompts: Sequence[IntArray], *, max_new_tokens: int) -> None:
        """Token ids of the prompts that probes use (the first ``probe_prompts``), and the most to generate for each."""
        self._probe_prompts = [np.asarray(p, dtype=np.int64) for p in prompts[: self.settings.probe_prompts]]
        self._probe_tokens = min(self.settings.probe_tokens, max_new_tokens)

    def sync(self, version: int) -> list[Metric]:
        """The engine holds ``version`` when this returns; at once if it already did.

        ``sync/seconds`` is all that training waits for: pause, transfer and, where one is due, the probe.

        Raises WeightSyncError, with the stuck side in the message, after which no sync is possible; MismatchError
        from the probe.
        """
        if version == self.version:
            return []
        if self._failed_version is not None:
            raise WeightSyncError(
                f"cannot sync version {version}: the sync of version {self._failed_version} failed and may have left "
                "the engine with half of its weights; restart the engine, or the run from its last checkpoint"
            )
        is_due = self._is_probe_due()
        start = time.monotonic()
        if is_due and self.version is not None:
            self._sample(self.version, max_new_tokens=1)  # so that a prefix which survives the sync is found
        begun = time.monotonic()
        self._failed_version = version  # until it has succeeded, whatever is raised
        pause_s = self._pause_and_transfer(version)
        self._failed_version = None
        self.version = version
        transferred = time.monotonic()
        metrics = self.probe(version) if is_due else []
        self.num_syncs += 1
        seconds = {"": time.monotonic() - start, "pause_": pause_s, "transfer_": transferred - begun - pause_s}
        if is_due:
            seconds["probe_"] = seconds[""] - (transferred - begun)
        return metrics + [Metric(name=f"sync/{part}seconds", sum=value) for part, value in seconds.items()]

    def _is_probe_due(self) -> bool:
        first, every = self.settings.probe_first, self.settings.probe_every
        return self.num_syncs < first or (every > 0 and self.num_syncs % every == 0)

    def _pause_and_transfer(self, version: int) -> float:
        """Everything up to ``resume``; returns the seconds until the engine was silent."""
        start = time.monotonic()
        timeout_s = self.settings.timeout_s
        manifest = self._manifest()
        source = self._plan(version, manifest)
        try:
            self._on_engine(
                lambda: self._backend.pause(self._sync_mode), version, f"the engine to pause ({self._sync_mode})"
            )
            paused = time.monotonic() - start
            receiving = in_thread(
                lambda: self._loop_run(
                    self._backend.update_weights(source),
                    timeout_s + 1.0,
                    f"the engine to take the weights of version {version}",
                ),
                name="areal-lit-receive",
            )
            self._settle(version, receiving, self._send(source), timeout_s)
            self._on_engine(self._backend.resume, version, "the engine to resume")
        finally:
            self._transport.finish(source)
        return paused

    def _plan(self, version: int, manifest: tuple[TensorInfo, ...]) -> WeightSource:
        try:
            return self._transport.plan(version, manifest, num_receivers=self.num_receivers, directory=self._directory)
        except OSError as error:
            raise WeightSyncError(f"sync of version {version} failed before anything was sent: {error}") from error

    def _on_engine(self, call: Callable[[], Coroutine[Any, Any, _T]], version: int, what: str) -> _T:
        try:
            answer: _T = self._loop_run(call(), self.settings.timeout_s, what)
        except (TimeoutError, ConnectionError) as error:
            raise WeightSyncError(f"sync of version {version} failed, waiting for {what}: {error}") from error
        return answer

    def _settle(self, version: int, receiving: Future[Any], sending: Sequence[Future[Any]], timeout_s: float) -> None:
        """Wait for both sides; the first failure, or the deadline, names the side."""
        sides = {receiving: "the engine, receiving"} | {
            future: f"trainer rank {rank}, sending" for rank, future in enumerate(sending)
        }
        at_most_s = min(timeout_s, threading.TIMEOUT_MAX)  # inf is no time that a lock can wait for
        done, stuck = wait(sides, timeout=at_most_s, return_when=FIRST_EXCEPTION)
        names = "; ".join(sides[future] for future in sides if future in stuck)
        for future in sorted(done, key=lambda f: f is receiving):  # a sender's failure explains the receiver's
            error = future.exception()
            if error is not None:
                raise WeightSyncError(
                    f"sync of version {version} failed at {sides[future]}: {error}{names and f' (still busy: {names})'}"
                ) from error
        if stuck:
            raise WeightSyncError(
                f"sync of version {version} did not end within {timeout_s:g} s (sync.timeout_s); still busy: {names}"
            )

    def probe(self, version: int) -> list[Metric]:
        """Sample a few tokens from the engine and compare their log-probs with the trainer's.

        Raises MismatchError past the abort limit, WeightSyncError when the engine stamps tokens with another version.
        """
        if not self._probe_prompts:
            return []
        completions = self._sample(version, self._probe_tokens)
        stamped = sorted({int(v) for completion in completions for v in completion.versions})
        if stamped != [version]:
            raise WeightSyncError(
                f"after the sync of version {version} the engine draws tokens with versions {stamped}"
            )
        sequences: list[Scored] = [
            (np.concatenate([prompt, completion.token_ids]), len(prompt), 1.0)
            for prompt, completion in zip(self._probe_prompts, completions, strict=True)
        ]
        trainer = list(self._forward(sequences))
        return self._alarm.judge(
            np.concatenate([completion.logprobs for completion in completions]),
            np.concatenate(trainer),
            "sync/probe_difference", f"the probe after the sync of version {version}",
        )  # fmt: skip

    def _sample(self, version: int, max_new_tokens: int) -> list[Completion]:
        """A completion of each probe prompt, ahead of all that waits in the engine."""
        sampling = Sampling(max_new_tokens=max_new_tokens, ignore_eos=True)
        requests = [
            GenerateRequest(
                request_id=f"probe-{version}-{index}-{max_new_tokens}", token_ids=prompt, sampling=sampling, seed=index,
                prefix_group=f"probe-{index}", is_urgent=True,
            )
            for index, prompt in enumerate(self._probe_prompts)
        ]  # fmt: skip

        async def generate() -> list[Completion]:
            return await asyncio.gather(*(self._backend.generate(request) for request in requests))

        return self._on_engine(generate, version, f"the parity probe of version {version}")
