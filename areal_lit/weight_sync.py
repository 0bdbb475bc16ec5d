"""Weight sync: plan -> pause -> send and receive at once -> resume -> parity probe.

A failed sync ends the run: the engine may hold half of a version, and the first transfer may still be going on, so
nothing is ever posted again. Shapes: n tokens of one sequence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any, Literal, Protocol, final

import numpy as np

from areal_lit.contracts.inference import InferenceBackend
from areal_lit.contracts.transport import WeightTransport
from areal_lit.token_batch import TokenBatch
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

logger = logging.getLogger(__name__)

DEFAULT_LIMITS = {"float32": (1e-3, 1e-2)}
LOW_PRECISION_LIMITS = (0.05, 0.25)


class WeightSyncError(RuntimeError):
    """A sync failed, timed out or left the engine with other weights than the trainer's."""


class MismatchError(RuntimeError):
    """Engine and trainer disagree about the probability of tokens by more than the limit."""


class LoopRun(Protocol):
    """Runs a coroutine on the rollout loop; raises TimeoutError naming ``what`` after ``timeout_s``."""

    def __call__(self, coroutine: Coroutine[Any, Any, Any], timeout_s: float, what: str) -> Any: ...


Scored = tuple[IntArray, int, float]
"""Token ids of a whole sequence [n], how many of them are prompt, and the temperature."""

Forward = Callable[[Sequence[Scored]], Sequence[FloatArray]]
"""The trainer's log-probs of the tokens after each prompt, at that temperature."""


@final
class WeightSync:
    """When weights go to the engine, how long that may take, and how it is checked.

    Limits are on the mean absolute difference of log-probs between engine and trainer. By default they follow the
    served precision: warn above 1e-3 and end the run above 1e-2 for float32 (TF32 and other kernels stay below 1e-3),
    0.05 and 0.25 for bfloat16 and lower (healthy runs show 0.01 to 0.03).

    Args:
        interval: steps between syncs.
        timeout_s: for pausing, and again for the transfer.
        probe_first: compare log-probs after each of the first so many syncs.
        probe_every: and then after every so-many-th; 0: never again.
        probe_tokens: tokens generated per probe prompt.
        probe_prompts: prompts per probe; always the same, so that a stale KV prefix shows.
        warn_above: difference that is logged as a warning; None: by precision.
        abort_above: difference that ends the run; None: by precision.
    """

    def __init__(
        self,
        *,
        interval: int = 1,
        timeout_s: float = 300.0,
        probe_first: int = 2,
        probe_every: int = 50,
        probe_tokens: int = 16,
        probe_prompts: int = 2,
        warn_above: float | None = None,
        abort_above: float | None = None,
    ) -> None:
        for name, value, least in (
            ("interval", interval, 1), ("probe_first", probe_first, 0), ("probe_every", probe_every, 0),
            ("probe_tokens", probe_tokens, 1), ("probe_prompts", probe_prompts, 1),
        ):  # fmt: skip
            if value < least:
                raise ValueError(f"sync.{name} must be >= {least}, got {value}")
        if timeout_s <= 0:
            raise ValueError(f"sync.timeout_s must be > 0, got {timeout_s}")
        if warn_above is not None and abort_above is not None and warn_above > abort_above:
            raise ValueError(f"sync.warn_above must be <= sync.abort_above, got {warn_above} > {abort_above}")
        self.interval = interval
        self.timeout_s = timeout_s
        self.probe_first = probe_first
        self.probe_every = probe_every
        self.probe_tokens = probe_tokens
        self.probe_prompts = probe_prompts
        self.warn_above = warn_above
        self.abort_above = abort_above


class MismatchAlarm:
    """Watches that engine and trainer agree on tokens drawn with the very weights they are scored with.

    Args:
        settings: with the limits: a mean absolute difference above the first is logged, above the second raises.
        dtype: the weights are served in; decides limits that are not set.
    """

    def __init__(self, settings: WeightSync, *, dtype: str) -> None:
        warn, abort = DEFAULT_LIMITS.get(dtype, LOW_PRECISION_LIMITS)
        if settings.abort_above is not None:
            abort = settings.abort_above
            warn = min(warn, abort)
        if settings.warn_above is not None:
            warn = settings.warn_above
            abort = max(warn, abort)
        self.warn_above = warn
        self.abort_above = abort

    def check(self, batch: TokenBatch, version: int) -> list[Metric]:
        """Behaviour against proximal log-probs over the loss tokens of ``version``, the weights ``proximal`` is from.

        Without such tokens nothing is judged. Raises MismatchError.
        """
        chosen_T = batch["loss_mask"] & (batch["version"] == version)
        behaviour, proximal = batch["logprob"][chosen_T].numpy(), batch["proximal"][chosen_T].numpy()
        return self.judge(behaviour, proximal, "train/logprob_mismatch", f"the batch trained on at version {version}")

    def judge(self, engine: FloatArray, trainer: FloatArray, name: str, where: str) -> list[Metric]:
        """Mean (``name``) and largest (``name_max``) absolute difference of two arrays [n]. Raises MismatchError."""
        if not len(engine):
            return []
        difference = np.abs(np.asarray(engine, dtype=np.float64) - np.asarray(trainer, dtype=np.float64))
        mean, largest = float(difference.mean()), float(difference.max())
        message = (
            f"log-probs of engine and trainer differ by {mean:.3g} on average (largest {largest:.3g}, {len(engine)} "
            f"tokens) in {where}; the limits are {self.warn_above:g} (warn) and {self.abort_above:g} (end)"
        )
        if not mean <= self.abort_above:  # NaN ends the run too
            raise MismatchError(
                f"{message}. The engine holds other weights than the trainer, reuses old KV, or computes otherwise; "
                "if the difference is right for this precision, raise sync.abort_above"
            )
        if mean > self.warn_above:
            logger.warning("%s", message)
        total = Metric(name=name, sum=float(difference.sum()), count=float(len(engine)))
        return [total, Metric(name=f"{name}_max", sum=largest, reduction="max")]


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
        num_receivers: engine processes.
        dtype: the weights are served in.
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
        num_receivers: int,
        dtype: str,
    ) -> None:
        self.settings = settings
        self.version: int | None = None
        self.num_syncs = 0
        self._transport = transport
        self._backend = backend
        self._loop_run = loop_run
        self._send = send
        self._manifest = manifest
        self._forward = forward
        self._sync_mode = sync_mode
        self._directory = directory
        self._num_receivers = num_receivers
        self._probe_prompts: list[IntArray] = []
        self._failed_version: int | None = None
        self._alarm = MismatchAlarm(settings, dtype=dtype)

    @property
    def has_probe_prompts(self) -> bool:
        return bool(self._probe_prompts)

    def set_probe_prompts(self, prompts: Sequence[IntArray]) -> None:
        """Token ids of the prompts that probes use; the first ``probe_prompts`` of them."""
        self._probe_prompts = [np.asarray(p, dtype=np.int64) for p in prompts[: self.settings.probe_prompts]]

    def sync(self, version: int) -> list[Metric]:
        """The engine holds ``version`` when this returns; at once if it already did.

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
        if is_due and self.version is not None:
            for index in range(len(self._probe_prompts)):  # so that a prefix which survives the sync is found
                self._sample(self.version, index, max_new_tokens=1)
        start = time.monotonic()
        self._failed_version = version  # until it has succeeded, whatever is raised
        paused = self._pause_and_transfer(version)
        self._failed_version = None
        self.version = version
        seconds = time.monotonic() - start
        metrics = [
            Metric(name="sync/seconds", sum=seconds),
            Metric(name="sync/pause_seconds", sum=paused),
            Metric(name="sync/transfer_seconds", sum=seconds - paused),
        ]
        self.num_syncs += 1
        return metrics + self.probe(version) if is_due else metrics

    def _is_probe_due(self) -> bool:
        first, every = self.settings.probe_first, self.settings.probe_every
        return self.num_syncs < first or (every > 0 and self.num_syncs % every == 0)

    def _pause_and_transfer(self, version: int) -> float:
        """Everything up to ``resume``; returns the seconds until the engine was silent."""
        start = time.monotonic()
        timeout_s = self.settings.timeout_s
        manifest = self._manifest()
        source = self._transport.plan(version, manifest, num_receivers=self._num_receivers, directory=self._directory)
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
                )
            )
            self._settle(version, receiving, self._send(source), timeout_s)
            self._on_engine(self._backend.resume, version, "the engine to resume")
        finally:
            self._transport.finish(source)
        return paused

    def _on_engine(self, call: Callable[[], Coroutine[Any, Any, None]], version: int, what: str) -> None:
        try:
            self._loop_run(call(), self.settings.timeout_s, what)
        except (TimeoutError, ConnectionError) as error:
            raise WeightSyncError(f"sync of version {version} failed, waiting for {what}: {error}") from error

    def _settle(self, version: int, receiving: Future[Any], sending: Sequence[Future[Any]], timeout_s: float) -> None:
        """Wait for both sides; the first failure, or the deadline, names the side."""
        sides = {receiving: "the engine, receiving"} | {
            future: f"trainer rank {rank}, sending" for rank, future in enumerate(sending)
        }
        done, stuck = wait(sides, timeout=timeout_s, return_when=FIRST_EXCEPTION)
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
        completions = [
            self._sample(version, index, self.settings.probe_tokens) for index in range(len(self._probe_prompts))
        ]
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

    def _sample(self, version: int, index: int, max_new_tokens: int) -> Completion:
        request = GenerateRequest(
            request_id=f"probe-{version}-{index}-{max_new_tokens}",
            token_ids=self._probe_prompts[index],
            sampling=Sampling(max_new_tokens=max_new_tokens, ignore_eos=True),
            seed=index,
            prefix_group=f"probe-{index}",
        )
        what = f"the parity probe of version {version}"
        completion: Completion = self._loop_run(self._backend.generate(request), self.settings.timeout_s, what)
        return completion


def in_thread(call: Callable[[], Any]) -> Future[Any]:
    """The call's result; a daemon thread, as a call that hangs must not hold up the end of the process."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - the waiting thread re-raises whatever it was
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name="areal-lit-receive", daemon=True).start()
    return future
