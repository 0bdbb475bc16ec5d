"""The engine's process: one client, a decode loop, and two threads that keep the socket away from it (``link.py``).

The decode loop waits for the inbox when there is nothing to do, and for the engine otherwise; it is unblocked by
messages. It ends when the client disconnects.
"""

from __future__ import annotations

import itertools
import queue
import socket
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from areal_lit.plugins import check_fingerprint
from areal_lit.text import TextCodec
from areal_lit.types import ModelSpec, WeightSource
from areal_lit_inference.transformers import messages
from areal_lit_inference.transformers.engine import Engine
from areal_lit_inference.transformers.link import Link, accepted
from areal_lit_inference.transformers.messages import (
    Cancel,
    Completed,
    Flush,
    Generate,
    Pause,
    Ready,
    Reply,
    Resume,
    Score,
    ToEngine,
    Update,
)
from areal_lit_inference.transformers.model import ServedModel, load_receiver
from areal_lit_inference.transformers.rows import Finished
from areal_lit_inference.transformers.rows import Sequence as EngineSequence
from areal_lit_inference.transformers.sampling import seed_state
from areal_lit_inference.transformers.scoring import Asked
from areal_lit_inference.transformers.stopping import Stopping


def serve(
    address: str, *, spec: ModelSpec, max_slots: int, max_prefill_tokens: int, device: str, dtype: str | None,
    deterministic: bool, version: int | None, fingerprint: Mapping[str, str],
) -> None:  # fmt: skip
    """Listen on a Unix socket, load the model, serve the one client, return when it disconnects.

    Raises TimeoutError when no client comes, and whatever ended the engine after telling the client.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        listener.listen(1)
        try:
            check_fingerprint(fingerprint)
            engine = load_engine(
                spec, max_slots=max_slots, max_prefill_tokens=max_prefill_tokens, device=device, dtype=dtype,
                deterministic=deterministic, version=version,
            )  # fmt: skip
        except BaseException:
            with accepted(listener):
                raise
        with accepted(listener) as link:
            link.send([Ready()])
            Server(engine, link).run()


def load_engine(
    spec: ModelSpec, *, max_slots: int, max_prefill_tokens: int, device: str, dtype: str | None,
    deterministic: bool, version: int | None,
) -> Engine:  # fmt: skip
    """The model, checked against its own forward pass, and an engine around it."""
    served = ServedModel(spec, dtype=dtype, device=device)
    served.check_finite()
    served.check_parity()
    codec = TextCodec(spec)
    stopping = Stopping(
        end_token_ids=codec.end_token_ids, vocab_size=served.vocab_size, decode=lambda ids: codec.tokenizer.decode(ids)
    )
    return Engine(
        served, stopping=stopping, max_slots=max_slots, max_prefill_tokens=max_prefill_tokens,
        deterministic=deterministic, version=version,
    )  # fmt: skip


class Server:
    """Carries messages between a link and an engine, and holds the engine while it is paused."""

    def __init__(self, engine: Engine, link: Link) -> None:
        self.engine = engine
        self.link = link
        self.is_paused = False
        self._draining: Pause | None = None
        self._receivers: dict[str, Any] = {}

    def run(self) -> None:
        """Serve until the client disconnects."""
        while self._handle_inbox():
            finished = self.engine.step(admit=not self.is_paused)
            self._complete(finished)
            if self._draining is not None and not self.engine.num_active:
                self.link.send([Reply(number=self._draining.number)])
                self._draining = None

    def _handle_inbox(self) -> bool:
        """Handle all that has come, waiting for more only when there is nothing to decode. False: disconnected."""
        has_work = bool(self.engine.num_active or self._draining or (self.engine.waiting and not self.is_paused))
        while True:
            try:
                batch = self.link.inbox.get(block=not has_work)
            except queue.Empty:
                return True
            if batch is None:
                return False
            for is_score, together in itertools.groupby(batch, lambda message: isinstance(message, Score)):
                if is_score:
                    self._score([message for message in together if isinstance(message, Score)])
                else:
                    for message in together:
                        self._handle(message)
            has_work = True

    def _handle(self, message: ToEngine) -> None:
        if isinstance(message, Generate):
            sequence = EngineSequence(
                number=message.number, token_ids=messages.ids_from_bytes(message.token_ids), sampling=message.sampling,
                noise=seed_state(message.seed), is_urgent=message.is_urgent,
            )  # fmt: skip
            refused = self.engine.submit(sequence)
            self._complete([refused] if refused else [])
        elif isinstance(message, Cancel):
            self.engine.cancel({message.number})
        elif isinstance(message, Pause):
            self._pause(message)
        elif isinstance(message, Update):
            self._update(message)
        elif isinstance(message, Resume):
            self.is_paused = False
            self.link.send([Reply(number=message.number)])
        elif isinstance(message, Flush):
            self.engine.flush_cache()
            self.link.send([Reply(number=message.number)])

    def _pause(self, message: Pause) -> None:
        self.is_paused = True
        if message.mode == "drain":
            self._draining = message
            return
        self._complete(self.engine.interrupt())
        self.link.send([Reply(number=message.number)])

    def _update(self, message: Update) -> None:
        """Running sequences are handed back first: none may mix two versions' keys and values."""
        self._complete(self.engine.interrupt())
        error = ""
        try:
            self._load(message.source, message.timeout_s)
        except Exception as failure:  # noqa: BLE001 - a receiver is plugin code; the client raises what it raised
            error = f"{type(failure).__name__}: {failure}\n{traceback.format_exc()}"
        self.link.send([Reply(number=message.number, error=error)])

    def _load(self, source: WeightSource, timeout_s: float) -> None:
        if source.version == self.engine.version and not self.engine.is_torn:
            return
        if source.receiver not in self._receivers:
            self._receivers[source.receiver] = load_receiver(source.receiver)
        tensors = self._receivers[source.receiver].receive(source.params, 0, timeout_s)
        self.engine.load(source.version, tensors, source.tensors)

    def _score(self, scores: Sequence[Score]) -> None:
        """Answer all that came together; a sequence that cannot be scored keeps no other from it."""
        replies: list[Reply] = []
        taken: dict[int, Asked] = {}
        for m in scores:
            asked = Asked(token_ids=messages.ids_from_bytes(m.token_ids), temperature=m.temperature, k=m.k)
            if error := self.engine.refusal_to_score(asked):
                replies.append(Reply(number=m.number, error=error))
            else:
                taken[m.number] = asked
        for (number, asked), answer in zip(taken.items(), self.engine.score(list(taken.values())), strict=True):
            logprobs = answer.topk_logprobs if asked.k else answer.logprobs
            replies.append(Reply(number=number, token_ids=answer.topk_token_ids.tobytes(), logprobs=logprobs.tobytes()))
        self.link.send(replies)

    def _complete(self, finished: Sequence[Finished]) -> None:
        if finished:
            self.link.send([
                Completed(
                    number=f.number, token_ids=f.token_ids.tobytes(), logprobs=f.logprobs.tobytes(), version=f.version,
                    stop_reason=f.stop_reason, error=f.error,
                )
                for f in finished
            ])  # fmt: skip
