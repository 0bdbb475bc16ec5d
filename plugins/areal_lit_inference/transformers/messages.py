"""What client and engine say to each other: length-prefixed msgpack frames over a Unix socket, no pickle.

Token ids travel as raw little-endian int64, log-probs as float32. One frame holds many messages, so that all
requests of one event-loop turn, and all completions of one decode step, cost one write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from areal_lit.types import Completion, FloatArray, GenerateRequest, IntArray, Sampling, StopReason, WeightSource

HEADER_BYTES = 4


class Message(msgspec.Struct, array_like=True, tag=True, kw_only=True):
    """Base of all messages."""


class Generate(Message):
    """Continue a sequence; answered by ``Completed`` with the same number."""

    number: int
    token_ids: bytes
    sampling: Sampling
    seed: int
    is_urgent: bool = False


class Cancel(Message):
    """Nobody waits for this request any more; no answer."""

    number: int


class Update(Message):
    """Take weights; answered by ``Reply``, like every call below."""

    number: int
    source: WeightSource
    timeout_s: float


class Pause(Message):
    number: int
    mode: Literal["interrupt", "drain"]


class Resume(Message):
    number: int


class Score(Message):
    number: int
    token_ids: bytes
    temperature: float
    k: int = 0


class Flush(Message):
    number: int


class Completed(Message):
    """A request's end; ``error`` says why it was refused."""

    number: int
    token_ids: bytes
    logprobs: bytes
    version: int
    stop_reason: StopReason
    error: str


class Reply(Message):
    """A call's end. ``error`` names what the call raised; the rest is what ``Score`` asked for, [n] or [n, k]."""

    number: int
    error: str = ""
    token_ids: bytes = b""
    logprobs: bytes = b""


class Ready(Message):
    """The model is loaded; sent once."""


class Failed(Message):
    """The engine is about to end, and why."""

    error: str


Call = Update | Pause | Resume | Score | Flush
ToEngine = Generate | Cancel | Call
ToClient = Ready | Failed | Completed | Reply

_encoder = msgspec.msgpack.Encoder()
decode_to_engine = msgspec.msgpack.Decoder(list[ToEngine]).decode
decode_to_client = msgspec.msgpack.Decoder(list[ToClient]).decode


UNENCODABLE = (OverflowError, TypeError, ValueError)
"""What ``frame`` raises for a message with a value that no wire format has."""


def frame(messages: Sequence[Message]) -> bytes:
    """Messages as one frame: a little-endian length of four bytes, then msgpack."""
    body = _encoder.encode(messages)
    return len(body).to_bytes(HEADER_BYTES, "little") + body


def ids_to_bytes(token_ids: IntArray) -> bytes:
    return np.ascontiguousarray(token_ids, dtype="<i8").tobytes()


def ids_from_bytes(data: bytes) -> IntArray:
    """A writable copy, [n]."""
    return np.frombuffer(data, dtype="<i8").astype(np.int64)


def floats_from_bytes(data: bytes) -> FloatArray:
    """A writable copy, [n]."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32)


def generate_message(number: int, request: GenerateRequest) -> Generate:
    """A request for the wire."""
    return Generate(
        number=number, token_ids=ids_to_bytes(request.token_ids), sampling=request.sampling, seed=request.seed % 2**63,
        is_urgent=request.is_urgent,
    )  # fmt: skip


def completion(message: Completed) -> Completion:
    """A completion from the wire."""
    token_ids = ids_from_bytes(message.token_ids)
    return Completion(
        token_ids=token_ids, logprobs=floats_from_bytes(message.logprobs),
        versions=np.full(len(token_ids), message.version, np.int64), stop_reason=message.stop_reason,
    )  # fmt: skip
