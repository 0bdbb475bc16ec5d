"""``transformers``: the embedded engine, plain Hugging Face models with continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from areal_lit.contracts.inference import InferenceBackend, LogprobDistribution
from areal_lit.contracts.launcher import Process, ProcessSpec
from areal_lit.models import LATE_IMPORTS
from areal_lit.sizes import MAX_PROCESSES, MAX_SLOTS, MAX_THREADS, require_size
from areal_lit.types import Completion, FloatArray, GenerateRequest, IntArray, ModelSpec, WeightSource

if TYPE_CHECKING:
    from areal_lit_inference.transformers.client import Client
    from areal_lit_inference.transformers.messages import Reply

START_TIMEOUT_S = 300.0


class Transformers(InferenceBackend):
    """Serves any causal language model of Hugging Face transformers with full attention, on CPU or GPU.

    Continuous batching over a slotted key/value cache; a group's prompt is computed once. Log-probs are those of the
    distribution after temperature and before top-p and top-k.

    Args:
        max_slots: sequences decoded together at most; others wait.
        max_prefill_tokens: prompt tokens of one prefill at most, unless a single prompt has more.
        num_threads: CPU threads of the engine process.
        num_gpus: GPUs that the engine process sees; a fraction shares one, 0 shows all there are.
        device: ``auto`` takes CUDA if there is one.
        dtype: ``float32`` or ``bfloat16``; the model's by default.
        update_timeout_s: how long the engine waits for the next piece of new weights.
        trust_checkpoint: serve the weights at the model's path as version 0 before the first sync. Off, generating
            before the first sync is an error.
    """

    receivers: ClassVar[frozenset[str]] = frozenset({"*"})
    preload = (*LATE_IMPORTS, "areal_lit_inference.transformers.server")
    logprobs: LogprobDistribution = LogprobDistribution(after_temperature=True, after_truncation=False)

    def __init__(
        self,
        *,
        max_slots: int = 128,
        max_prefill_tokens: int = 8192,
        num_threads: int = 1,
        num_gpus: float = 0,
        device: str = "auto",
        dtype: Literal["float32", "bfloat16"] | None = None,
        update_timeout_s: float = 120.0,
        trust_checkpoint: bool = False,
    ) -> None:
        require_size("max_slots", max_slots, least=1, most=MAX_SLOTS)
        require_size("max_prefill_tokens", max_prefill_tokens, least=1)
        require_size("num_threads", num_threads, least=1, most=MAX_THREADS)
        require_size("num_gpus", num_gpus, least=0, most=MAX_PROCESSES)
        self.max_slots = max_slots
        self.max_prefill_tokens = max_prefill_tokens
        self.num_threads = num_threads
        self.num_gpus = num_gpus
        self.device = device
        self.dtype = dtype
        self.update_timeout_s = update_timeout_s
        self.trust_checkpoint = trust_checkpoint
        self._client: Client | None = None

    def processes(self, spec: ModelSpec, *, seed: int, deterministic: bool) -> Sequence[ProcessSpec]:
        """One engine process. ``seed`` is not used: every request brings its own."""
        from areal_lit.plugins import fingerprint

        kwargs = {
            "spec": spec, "max_slots": self.max_slots, "max_prefill_tokens": self.max_prefill_tokens,
            "device": self.device, "dtype": self.dtype, "deterministic": deterministic,
            "version": 0 if self.trust_checkpoint else None, "fingerprint": fingerprint([self]),
        }  # fmt: skip
        return [
            ProcessSpec(
                name="engine-0",
                target="areal_lit_inference.transformers.server:serve",
                kwargs=kwargs,
                num_threads=self.num_threads,
                num_gpus=self.num_gpus,
                start_timeout_s=START_TIMEOUT_S,
            )
        ]

    async def connect(self, processes: Sequence[Process]) -> None:
        """Connect and wait until the model is loaded."""
        (process,) = processes
        from areal_lit_inference.transformers.client import Client

        self._client = await Client.open(process, START_TIMEOUT_S)

    @property
    def client(self) -> Client:
        if self._client is None:
            raise RuntimeError("the transformers backend is not connected; call connect first")
        return self._client

    async def generate(self, request: GenerateRequest) -> Completion:
        """Continue a request. Raises ValueError for an impossible one, RuntimeError without confirmed weights."""
        return await self.client.generate(request)

    async def update_weights(self, source: WeightSource) -> None:
        """Take weights in place. Running requests come back as interrupted first."""
        from areal_lit_inference.transformers.messages import Update

        await self.client.call(Update(number=self.client.next_number(), source=source, timeout_s=self.update_timeout_s))

    async def pause(self, mode: Literal["interrupt", "drain"]) -> None:
        """Stop between decode steps; under ``drain`` after the running requests' ends."""
        from areal_lit_inference.transformers.messages import Pause

        await self.client.call(Pause(number=self.client.next_number(), mode=mode))

    async def resume(self) -> None:
        """Start what has waited."""
        from areal_lit_inference.transformers.messages import Resume

        await self.client.call(Resume(number=self.client.next_number()))

    async def score(self, token_ids: IntArray, *, temperature: float = 1.0) -> FloatArray:
        """Log-prob of every token under the weights the engine holds now."""
        from areal_lit_inference.transformers.messages import floats_from_bytes

        return floats_from_bytes((await self._score(token_ids, temperature, 0)).logprobs)

    async def score_topk(self, token_ids: IntArray, *, k: int, temperature: float = 1.0) -> tuple[IntArray, FloatArray]:
        """The likeliest tokens in the place of each, and their log-probs, under the weights the engine holds now."""
        from areal_lit_inference.transformers.messages import floats_from_bytes, ids_from_bytes

        if k < 1:
            raise ValueError(f"k must be >= 1, got {k}")
        reply = await self._score(token_ids, temperature, k)
        return ids_from_bytes(reply.token_ids).reshape(-1, k), floats_from_bytes(reply.logprobs).reshape(-1, k)

    async def _score(self, token_ids: IntArray, temperature: float, k: int) -> Reply:
        from areal_lit_inference.transformers.messages import Score, ids_to_bytes

        number = self.client.next_number()
        return await self.client.call(
            Score(number=number, token_ids=ids_to_bytes(token_ids), temperature=temperature, k=k)
        )

    async def flush_cache(self) -> None:
        """Share no computed prompt with requests yet to come."""
        from areal_lit_inference.transformers.messages import Flush

        await self.client.call(Flush(number=self.client.next_number()))

    async def close(self) -> None:
        """Disconnect; the engine process then ends by itself."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
