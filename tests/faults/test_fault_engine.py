"""Engines that answer garbage, or not at all: nothing of it is trained on, and the error names the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from child_processes import children_called
from fault_parts import InPhase, Rows, Trained, small
from lying_engine import LIES, Lying

from areal_lit.contracts import Process, ProcessDied
from areal_lit.types import GenerateRequest, Sampling
from areal_lit.weight_sync import WeightSync, WeightSyncError
from areal_lit_inference.transformers.client import Client
from areal_lit_inference.transformers.messages import (
    Completed,
    Generate,
    Message,
    Ready,
    Reply,
    decode_to_engine,
    frame,
)
from areal_lit_launchers.local import Local


@pytest.mark.slow
def test_no_lie_of_an_engine_is_trained_on(tmp_path: Path) -> None:
    rows = [*["2+2="] * 12, *(f"{letter}+1=" for letter in LIES)]
    run = small(
        tmp_path, launcher=Local(), inference=Lying(max_slots=16), data=Rows(rows), loggers=[trained := Trained()],
        rollout={"num_epochs": 1, "max_attempts": 1, "failure_budget": 1.0}, max_steps=None,
    )  # fmt: skip
    run.fit()
    assert trained.prompts == ["2+2="] * 12
    assert trained.total("rollout/failed_episodes") == 2 * len(LIES)


@pytest.mark.slow
def test_an_engine_that_only_lies_ends_the_run_and_is_named(tmp_path: Path) -> None:
    rows = ["2+2=", "2+2=", *["e+1="] * 60]
    run = small(tmp_path, launcher=Local(), inference=Lying(max_slots=16), data=Rows(rows))
    with pytest.raises(
        RuntimeError, match=r"Lying returned tokens of version 5, and no engine was offered any after 0"
    ):
        run.fit()


class Here(Process):
    """An engine that this test plays itself."""

    def __init__(self, address: Path) -> None:
        self.name, self.ports, self.address = "engine-0", (), str(address)

    def is_alive(self) -> bool:
        return True

    def stop(self, grace_s: float = 5.0) -> None: ...


def completed(number: int) -> Completed:
    return Completed(
        number=number, token_ids=np.ones(1, "<i8").tobytes(), logprobs=np.zeros(1, "<f4").tobytes(), version=0,
        stop_reason="stop", error="",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("answers", "error", "says"),
    [
        (lambda n: [completed(n), completed(n)], None, "an answer to call 0, which was not made or has been answered"),
        (
            lambda n: [completed(n), completed(n + 7)],
            None,
            "an answer to call 7, which was not made or has been answered",
        ),
        (lambda n: b"\x02\0\0\0\xff\xff", ConnectionError, "sent what cannot be read: ValidationError"),
        (
            lambda n: [Reply(number=n)],
            ValueError,
            "engine-0, request r: the engine answered with a Reply instead of a co",
        ),
    ],
)
async def test_answers_to_nothing_end_the_connection(
    tmp_path: Path, answers: Callable[[int], Sequence[Message] | bytes], error: type[Exception] | None, says: str
) -> None:
    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame([Ready()]))
        size = int.from_bytes(await reader.readexactly(4), "little")
        (asked,) = decode_to_engine(await reader.readexactly(size))
        assert isinstance(asked, Generate)
        answer = answers(asked.number)
        writer.write(answer if isinstance(answer, bytes) else frame(answer))
        await reader.read()
        writer.close()

    async with await asyncio.start_unix_server(play, tmp_path / "s"):
        client = await Client.open(Here(tmp_path / "s"), 10.0)
        request = GenerateRequest(
            request_id="r", token_ids=np.ones(2, np.int64), sampling=Sampling(max_new_tokens=1), seed=0
        )
        first = asyncio.create_task(client.generate(request))
        if error is not None:
            with pytest.raises(error, match=says):
                await first
        if error is not ValueError:
            await asyncio.wait([first])
            with pytest.raises(ConnectionError, match=f"engine-0 .*{says}"):
                await client.generate(request)
        await client.close()


def stop(name: str) -> Callable[[], None]:
    """SIGSTOP for the rank or engine of this name."""

    def strike() -> None:
        (named,) = children_called(name)
        named.suspend()

    return strike


@pytest.mark.slow
def test_an_engine_that_stops_in_a_sync_is_named_with_the_limit(tmp_path: Path) -> None:
    run = small(
        tmp_path, launcher=Local(hang_timeout_s=0), callbacks=[InPhase("sync_weights", 2, stop("engine-0"))],
        sync=WeightSync(timeout_s=5.0),
    )  # fmt: skip
    with pytest.raises(
        WeightSyncError, match=r"sync of version 2 failed, waiting for the engine to pause .* 5 s"
    ) as ended:
        run.fit()
    assert "step 2 is saved; go on with --resume auto" in "".join(ended.value.__notes__)
    small(tmp_path, launcher=Local(), loggers=[after := Trained()]).fit(resume="auto")
    assert len(after.groups) == 2


@pytest.mark.slow
def test_a_rank_that_stops_in_a_step_is_named_with_the_limit(tmp_path: Path) -> None:
    run = small(
        tmp_path, launcher=Local(hang_timeout_s=0), callbacks=[InPhase("train", 2, stop("policy-0"))],
        call_timeout_s=30.0,  # the ranks' setup keeps to it too, and they import torch in it
    )  # fmt: skip
    with pytest.raises(
        (TimeoutError, ProcessDied), match="policy rank 0 did not answer optimizer_step within 30 s"
    ) as ended:
        run.fit()
    assert "there is no checkpoint to go on from: begin anew" in "".join(ended.value.__notes__)
