"""The teacher's server: the same columns as ranks give, many sequences at once, and every wait with an end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_lit.activity import Activity
from areal_lit.batching import pack
from areal_lit.contracts import InferenceBackend, Output
from areal_lit.logs import Logs
from areal_lit.models import load_causal_lm
from areal_lit.run.teacher import TeacherClient
from areal_lit.teacher_server import TeacherServer
from areal_lit.testing import FakeBackend, tiny_spec
from areal_lit.testing.strategy_case import plain_distributions
from areal_lit.testing.toy import RaggedGroups
from areal_lit.token_batch import TokenBatch
from areal_lit.types import ModelSpec
from areal_lit_inference.transformers import Transformers
from areal_lit_launchers.inline import Inline
from areal_lit_single.strategy import Single

LOGPROB: frozenset[Output] = frozenset({"logprob"})
TOPK: frozenset[Output] = frozenset({"topk"})


def turns() -> TokenBatch:
    """Sequences of two loss spans with tool tokens between, some empty, at two temperatures."""
    return pack(RaggedGroups().draw(np.random.default_rng(0)))


@contextmanager
def connected(
    backend: InferenceBackend, spec: ModelSpec, tmp_path: Path, *, max_concurrent: int = 64, timeout_s: float = 30.0
) -> Iterator[TeacherClient]:
    server, launcher = TeacherServer(model=spec, inference=backend, max_concurrent=max_concurrent), Inline()
    launcher.setup(tmp_path / "logs", lambda death: None, Logs())
    client = TeacherClient(server, timeout_s=timeout_s, activity=Activity())
    try:
        client.start([launcher.start_process(s) for s in server.processes(seed=0, deterministic=False)])
        yield client
    finally:
        client.stop()
        launcher.stop()


def test_a_served_teacher_says_what_one_on_ranks_says_of_every_span(tmp_path: Path) -> None:
    spec, batch = tiny_spec(tmp_path), turns()
    spans_S = batch.segment_sum((batch["loss_mask"] & ~batch["loss_mask"].roll(1)).long())
    assert int(spans_S.max()) == 2
    assert 0 in batch.loss_tokens_S.tolist()
    on_ranks = Single()
    on_ranks.setup(spec)
    (ours,), (likeliest,) = on_ranks.forward([batch], LOGPROB), on_ranks.forward([batch.with_scalars(topk=3.0)], TOPK)
    with connected(Transformers(), spec, tmp_path) as client:
        theirs = client.forward(batch, LOGPROB)
        named = client.forward(batch.with_scalars(topk=3.0), TOPK)
    torch.testing.assert_close(theirs.logprob_T, ours.logprob_T, atol=1e-4, rtol=0)
    torch.testing.assert_close(named.topk_logprob_TK, likeliest.topk_logprob_TK, atol=1e-4, rtol=0)
    assert torch.equal(named.topk_token_TK, likeliest.topk_token_TK)
    with torch.no_grad():
        alone_TV = plain_distributions(load_causal_lm(spec), batch)
    expected_T = alone_TV.gather(1, batch["token"][:, None])[:, 0].where(batch["loss_mask"], 0.0)
    torch.testing.assert_close(theirs.logprob_T, expected_T, atol=1e-4, rtol=0)


class Counting(FakeBackend):
    """Counts the sequences that are with it at once."""

    def __init__(self) -> None:
        super().__init__(start_version=0)
        self.now = self.most = 0

    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return await super().score(token_ids, temperature=temperature)


@pytest.mark.parametrize("max_concurrent", [1, 5])
def test_sequences_are_asked_for_at_once_as_many_as_allowed(tmp_path: Path, max_concurrent: int) -> None:
    backend = Counting()
    with connected(backend, tiny_spec(tmp_path), tmp_path, max_concurrent=max_concurrent) as client:
        out = client.forward(turns(), LOGPROB)
    assert backend.most == max_concurrent
    assert out.logprob_T is not None
    assert bool((out.logprob_T[turns()["loss_mask"]] < 0).all())


class Short(FakeBackend):
    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        return (await super().score(token_ids, temperature=temperature))[1:]


class Nothing(FakeBackend):
    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        return np.full(len(token_ids), np.nan, np.float32)


class Above(FakeBackend):
    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        return np.ones(len(token_ids), np.float32)


class Refusing(FakeBackend):
    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        raise ValueError("token ids must be in [0, 3)")


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        (Short, r"must answer in shape \(\d+,\), got"),
        (
            Nothing,
            "the teacher's server answered what no model can: log-prob nan, and all must be finite and at most 0",
        ),
        (Above, "log-prob 1.0, and all must be finite and at most 0"),
        (Refusing, r"token ids must be in \[0, 3\)"),
    ],
)
def test_answers_that_do_not_fit_are_errors(tmp_path: Path, kind: type[FakeBackend], rule: str) -> None:
    with (
        connected(kind(start_version=0), tiny_spec(tmp_path), tmp_path) as client,
        pytest.raises(ValueError, match=rule),
    ):
        client.forward(turns(), LOGPROB)


class Elsewhere(FakeBackend):
    """Names tokens so far from those it means."""

    by = 0

    async def score_topk(self, token_ids: Any, *, k: int, temperature: float = 1.0) -> Any:
        tokens, logprobs = await super().score_topk(token_ids, k=k, temperature=temperature)
        return tokens + self.by, logprobs


@pytest.mark.parametrize("by", [1000, -1000])
def test_tokens_that_the_teacher_does_not_have_are_refused(tmp_path: Path, by: int) -> None:
    spec, backend = tiny_spec(tmp_path), Elsewhere(start_version=0)
    with connected(backend, spec, tmp_path) as client:
        assert client.forward(turns().with_scalars(topk=3.0), TOPK).topk_token_TK is not None
        backend.by = by
        with pytest.raises(
            ValueError, match=r"token ids from -?\d+ to -?\d+, and all must be >= 0 and below the vocab"
        ):
            client.forward(turns().with_scalars(topk=3.0), TOPK)


class Silent(FakeBackend):
    """Answers two sequences and no more."""

    num_asked = 0

    async def score(self, token_ids: Any, *, temperature: float = 1.0) -> Any:
        self.num_asked += 1
        if self.num_asked > 2:
            await asyncio.get_running_loop().create_future()
        return await super().score(token_ids, temperature=temperature)


def test_a_teacher_that_falls_silent_ends_at_its_deadline_or_with_the_run(tmp_path: Path) -> None:
    batch = turns()
    num = int((batch.loss_tokens_S > 0).sum())
    with connected(Silent(start_version=0), tiny_spec(tmp_path), tmp_path, timeout_s=2.0) as client:
        with pytest.raises(
            TimeoutError, match=rf"the teacher's server \(call_timeout_s\).* answered 2 of {num} sequences"
        ):
            client.forward(batch, LOGPROB)
        client.fail(ConnectionError("teacher-engine-0 died"))
        with pytest.raises(ConnectionError, match="teacher-engine-0 died"):
            client.forward(batch, LOGPROB)


def test_a_batch_without_loss_tokens_asks_nothing(tmp_path: Path) -> None:
    batch = turns()
    batch = batch.with_columns(loss_mask=torch.zeros_like(batch["loss_mask"]))
    with connected(Refusing(start_version=0), tiny_spec(tmp_path), tmp_path) as client:
        out = client.forward(batch, LOGPROB)
    assert out.logprob_T is not None
    assert not bool(out.logprob_T.any())
