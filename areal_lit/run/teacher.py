"""TeacherClient: what the controller asks of a teacher's server.

Shapes: T packed tokens, S segments, K of the teacher's likeliest tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from areal_lit.activity import Activity
from areal_lit.contracts import Output, Process
from areal_lit.models import ModelFiles
from areal_lit.rollout.event_thread import EventThread
from areal_lit.rollout.limits import Limits, token_problem
from areal_lit.teacher_server import TeacherServer
from areal_lit.token_batch import TokenBatch, TokenOutputs
from areal_lit.types import IntArray

if TYPE_CHECKING:
    from torch import Tensor

Answer = TypeVar("Answer")

CONNECT_TIMEOUT_S = 600.0


class TeacherClient:
    """Whole batches in, whole columns out, as ``RoleGroup.forward`` has them from ranks.

    Args:
        timeout_s: longest that one batch may take.
        activity: told what is waited for.
    """

    def __init__(self, server: TeacherServer, *, timeout_s: float, activity: Activity) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._activity = activity
        self._thread = EventThread("teacher")

    def start(self, processes: Sequence[Process]) -> None:
        """Connect, and wait until the engine holds its model."""
        self._thread.start()
        with self._activity.during("loading the teacher"):
            connected = self._server.inference.connect(processes)
            self._thread.run(connected, timeout_s=CONNECT_TIMEOUT_S, what="the teacher's server to start")

    def fail(self, error: BaseException) -> None:
        """Make every wait raise this error; for any thread."""
        self._thread.fail(error)

    def stop(self) -> None:
        """Disconnect, in any state."""
        self._thread.stop(self._server.inference.close)

    def forward(self, batch: TokenBatch, outputs: frozenset[Output]) -> TokenOutputs:
        """``logprob``, or ``topk`` as many as the batch's scalar says, at loss tokens; 0 elsewhere.

        Raises:
            TimeoutError: saying how many sequences were answered.
            ValueError: for answers that do not fit what was asked.
        """
        backend = self._server.inference
        if "topk" in outputs:
            k = int(batch.scalars["topk"])
            answers = self._answers(batch, lambda ids, t: backend.score_topk(ids, k=k, temperature=t))
            tokens, logprobs = [token_ids for token_ids, _ in answers], [values for _, values in answers]
            shape = (batch.num_tokens, k)
            token_TK, logprob_TK = _column(batch, tokens, shape, np.int64), _column(batch, logprobs, shape, np.float32)
            self._check(batch, token_TK, logprob_TK)
            return TokenOutputs(topk_token_TK=token_TK, topk_logprob_TK=logprob_TK)
        said = self._answers(batch, lambda ids, t: backend.score(ids, temperature=t))
        logprob_T = _column(batch, said, (batch.num_tokens,), np.float32)
        self._check(batch, batch["token"], logprob_T)
        return TokenOutputs(logprob_T=logprob_T)

    def _check(self, batch: TokenBatch, token: Tensor, logprob: Tensor) -> None:
        """Raise ValueError for what no model can say at a loss token."""
        mask_T, limits = batch["loss_mask"], Limits(vocab_size=ModelFiles(self._server.model).vocab_size)
        if problem := token_problem(token[mask_T].numpy(), logprob[mask_T].numpy(), limits=limits):
            raise ValueError(f"the teacher's server answered what no model can: {problem}")

    def _answers(self, batch: TokenBatch, ask: Callable[[IntArray, float], Awaitable[Answer]]) -> list[Answer]:
        """What it says of every sequence with loss tokens, in order."""
        sequences = [batch["token"][row].numpy() for row in _rows(batch)]
        temperatures = batch["temperature"][batch.loss_tokens_S > 0].tolist()
        num_answered = 0

        async def ask_one(gate: asyncio.Semaphore, token_ids: IntArray, temperature: float) -> Answer:
            nonlocal num_answered
            async with gate:
                answer = await ask(token_ids, temperature)
            num_answered += 1
            return answer

        async def ask_all() -> list[Answer]:
            gate = asyncio.Semaphore(self._server.max_concurrent)
            return await asyncio.gather(*(ask_one(gate, *pair) for pair in zip(sequences, temperatures, strict=True)))

        def progress() -> str:
            return f"it has answered {num_answered} of {len(sequences)} sequences"

        with self._activity.during(lambda: f"waiting for the teacher's server: {progress()}"):
            return self._thread.run(
                ask_all(), timeout_s=self._timeout_s, what="the teacher's server (call_timeout_s)", describe=progress
            )


def _rows(batch: TokenBatch) -> list[slice]:
    """The tokens of each sequence with loss tokens."""
    ends = batch["length"].cumsum(0)
    has_loss_S = batch.loss_tokens_S > 0
    bounds = zip((ends - batch["length"])[has_loss_S].tolist(), ends[has_loss_S].tolist(), strict=True)
    return [slice(start, end) for start, end in bounds]


def _column(batch: TokenBatch, answers: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Tensor:
    """The answers at loss tokens, 0 elsewhere; row t of an answer speaks of token t."""
    import torch

    column = np.zeros(shape, dtype)
    for row, answer in zip(_rows(batch), answers, strict=True):
        mask = batch["loss_mask"][row].numpy()
        expected = (len(mask), *shape[1:])
        if np.shape(answer) != expected:
            raise ValueError(f"the teacher's server must answer in shape {expected}, got {np.shape(answer)}")
        column[row][mask] = answer[mask]
    return torch.from_numpy(column)
