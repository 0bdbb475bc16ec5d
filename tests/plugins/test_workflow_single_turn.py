"""single_turn: one completion, tokens untouched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from areal_lit.testing.tiny import tiny_spec
from areal_lit.testing.workflow import check_workflow
from areal_lit.text import TextCodec
from areal_lit.types import Completion, Example, IntArray, Prompt, Trajectory
from areal_lit_workflows.single_turn import SingleTurn


class OneAnswer:
    """An episode that answers with two tokens and notes what it was asked."""

    prompt_ids = np.array([1, 2, 3])

    def __init__(self) -> None:
        self.asked: list[IntArray] = []

    async def generate(self, token_ids: IntArray, **overrides: Any) -> Completion:
        assert not overrides
        self.asked.append(token_ids)
        return Completion(
            token_ids=np.array([8, 9]), logprobs=np.zeros(2, np.float32), versions=np.zeros(2, np.int64),
            stop_reason="stop",
        )  # fmt: skip

    def trajectory(self, prompt: Prompt, token_ids: IntArray, completion: Completion) -> Trajectory:
        n = len(token_ids) + len(completion.token_ids)
        return Trajectory(
            token_ids=np.concatenate([token_ids, completion.token_ids]), loss_mask=np.arange(n) >= len(token_ids),
            logprobs=np.zeros(n, np.float32), versions=np.zeros(n, np.int64), prompt=prompt,
        )  # fmt: skip


def test_conformance(tmp_path: Path) -> None:
    check_workflow(SingleTurn, TextCodec(tiny_spec(tmp_path)))


async def test_prompt_is_asked_once_and_its_tokens_come_back_as_sent() -> None:
    prompt = Prompt(prompt_id=0, source="a", row=0, epoch=0, example=Example(prompt="x"))
    episode = OneAnswer()
    trajectory = await SingleTurn().run(prompt, episode)  # type: ignore[arg-type]
    assert [ids.tolist() for ids in episode.asked] == [[1, 2, 3]]
    assert trajectory.token_ids.tolist() == [1, 2, 3, 8, 9]
    assert trajectory.num_generated == 2
    assert trajectory.reward is None
