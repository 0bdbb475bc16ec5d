"""InferenceBackend: where tokens come from."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_lit.contracts.component import Component
from areal_lit.types import Completion, FloatArray, GenerateRequest, IntArray, ModelSpec, WeightSource

if TYPE_CHECKING:
    from areal_lit.contracts.launcher import Process, ProcessSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobDistribution:
    """Which distribution a backend's log-probs refer to; the trainer refuses one it does not train on.

    Args:
        after_temperature: the logits had been divided by the temperature.
        after_truncation: renormalised over what top-p and top-k kept.
    """

    after_temperature: bool = True
    after_truncation: bool = False


class InferenceBackend(Component):
    """A client in the controller, and the engine processes it describes.

    Coroutines run on the rollout event loop and must not block it. ``connect`` is called with the
    processes of ``processes()`` in order, once they run. Backends enforce no deadline of their own on
    ``generate``: the core does. An engine that dies fails pending requests with ConnectionError.
    """

    receivers: ClassVar[frozenset[str]] = frozenset()
    """Receivers (``pkg.module:Class``) the engine can load; ``*`` for any that its environment can import."""

    logprobs: LogprobDistribution = LogprobDistribution()

    @abstractmethod
    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        """The engine processes to start; none for a server that runs already."""

    @abstractmethod
    async def connect(self, processes: Sequence[Process]) -> None:
        """Connect and wait until the engine is ready to take weights (deadline: the launcher's)."""

    @abstractmethod
    async def generate(self, request: GenerateRequest) -> Completion:
        """Continue the request's tokens. ``stop_reason`` "interrupted" marks a partial result of ``pause``: the core
        sends what is left again, with the remaining budget, and the KV cache is recomputed.

        An urgent request (few, short: parity probes) overtakes those that wait; keep a little room for it.
        """

    @abstractmethod
    async def update_weights(self, source: WeightSource) -> None:
        """Take the weights of ``source.version``, all or nothing, and forget every KV prefix.

        Idempotent: a version the engine already holds is acknowledged and not applied again.
        """

    @abstractmethod
    async def pause(self, mode: Literal["interrupt", "drain"]) -> None:
        """Return when no token is being generated: partial results now, or running requests to their end.

        Requests that arrive while paused wait for ``resume``.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Go on generating."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect; the launcher ends the processes."""

    def num_receivers(self, processes: Sequence[Process]) -> int:
        """How many receivers take each version, numbered from 0 in the order of ``processes``; one each by default.

        A server that runs already counts as one, unless the backend says otherwise.
        """
        return max(1, len(processes))

    async def score(self, token_ids: IntArray, *, temperature: float = 1.0) -> FloatArray:
        """Log-prob of every token given those before it, [n], 0 for the first (teachers).

        Under the weights that the engine holds, before any update those it was started with. Called for many sequences
        at once.
        """
        raise NotImplementedError(f"{type(self).__name__} scores no given tokens")

    async def score_topk(self, token_ids: IntArray, *, k: int, temperature: float = 1.0) -> tuple[IntArray, FloatArray]:
        """The k likeliest tokens in the place of each token, likeliest first, and their log-probs, [n, k] each.

        Given the tokens before that place; all 0 for the first. Otherwise as ``score``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not tell likeliest tokens")

    async def flush_cache(self) -> None:
        """Forget cached KV prefixes."""
