"""Conformance of rewards: what the reward pool relies on, checked on a plugin author's own class.

check_reward(MyReward(), [(completion("4", answer="4"), 1.0), (completion("5", answer="4"), 0.0)])
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from areal_lit.contracts.reward import GroupReward, Reward
from areal_lit.rewarding.calls import Outcome, call, describe, judge_of, set_up
from areal_lit.rewarding.processes import pack
from areal_lit.text import TextCodec
from areal_lit.types import Example, Prompt, Trajectory

Case = tuple[Trajectory, float | None]

ODD_TEXTS = ("", " \n", "\x00", "\ud800", "é" * 10_000, "<answer>", "\\boxed{", "-", "0" * 5_000)


def completion(text: str, prompt: str = "", *, codec: TextCodec | None = None, **fields: Any) -> Trajectory:
    """A finished trajectory with this completion, of an example with these fields.

    Args:
        codec: whose tokens it has; by default as many as characters, which mean nothing.
    """
    token_ids = np.arange(max(1, len(text)), dtype=np.int64) if codec is None else codec.encode(text)
    num_tokens = len(token_ids)
    return Trajectory(
        token_ids=token_ids,
        loss_mask=np.ones(num_tokens, dtype=np.bool_),
        logprobs=np.zeros(num_tokens, dtype=np.float32),
        versions=np.zeros(num_tokens, dtype=np.int64),
        prompt=Prompt(prompt_id=0, source="test", row=0, epoch=0, example=Example(prompt=prompt, fields=fields)),
        text=text,
    )


def check_reward(
    reward: Reward, cases: Sequence[Case], *, is_deterministic: bool = True, codec: TextCodec | None = None
) -> None:
    """Raise AssertionError naming the first thing that a run would stumble on.

    Args:
        reward: as constructed; not set up.
        cases: trajectories and the reward each must get; None for those that must stay unscored. A group reward
            gets all of them as one group.
        is_deterministic: equal trajectories get equal rewards, in any order (off for judges that sample).
        codec: for rewards that look at tokens; ``use_codec`` gets it, and odd tokens are tried with their text.
    """
    assert cases, "give at least one case"
    trajectories = [trajectory for trajectory, _ in cases]
    for trajectory, wanted in cases:
        _check_check(reward, trajectory, wanted)
    reward = _travelled(reward, codec)
    before = copy.deepcopy([(each.text, dict(each.prompt.fields)) for each in trajectories])
    outcomes = _score(reward, trajectories)
    after = [(each.text, dict(each.prompt.fields)) for each in trajectories]
    assert before == after, "score changed the example's fields, which other samples share; copy them first"
    _check_values(cases, outcomes)
    if reward.scores_steps is False:
        assert not any(outcome.steps for outcome in outcomes), "scores_steps is False, but a score has steps"
    if is_deterministic:
        _check_repeats(reward, trajectories, outcomes)
    _check_odd_texts(reward, trajectories[0])
    if codec is not None:
        _check_odd_tokens(reward, trajectories[0], codec)


def _check_check(reward: Reward, trajectory: Trajectory, wanted: float | None) -> None:
    problem = ""
    try:
        reward.check(trajectory.prompt.example)
    except ValueError as error:
        problem = str(error)
    fields = dict(trajectory.prompt.fields)
    assert not (problem and wanted), f"check refuses fields {fields!r:.200}, with which {wanted} is scored: {problem}"


def _travelled(reward: Reward, codec: TextCodec | None) -> Reward:
    """The reward as a worker has it: pickled, unpickled, set up."""
    name = type(reward).__name__
    try:
        payload = pack({name: reward}, codec)
    except ValueError as error:
        raise AssertionError(str(error)) from error
    rewards, codec = pickle.loads(payload)
    set_up(rewards, codec)
    copied: Reward = rewards[name]
    return copied


def _score(reward: Reward, trajectories: list[Trajectory]) -> list[Outcome]:
    if inspect.iscoroutinefunction(reward.score):
        return asyncio.run(_score_async(reward, trajectories))
    outcomes = call(reward, trajectories)
    assert len(outcomes) == len(trajectories)
    return outcomes


async def _score_async(reward: Reward, trajectories: list[Trajectory]) -> list[Outcome]:
    outcomes = []
    for trajectory in trajectories:
        try:
            outcomes.append(judge_of(trajectory, await reward.score(trajectory)))  # type: ignore[misc]
        # The checks report whatever the reward raises.
        except Exception as error:  # noqa: BLE001
            outcomes.append(Outcome(kind="error", reason=describe(error)))
    return outcomes


def _check_values(cases: Sequence[Case], outcomes: list[Outcome]) -> None:
    for (trajectory, wanted), outcome in zip(cases, outcomes, strict=True):
        what = f"completion {trajectory.text!r:.80} with fields {dict(trajectory.prompt.fields)!r:.200}"
        if wanted is None:
            assert outcome.kind in ("unscored", "error"), f"{what} must stay unscored, got {outcome.value}"
        else:
            assert outcome.value is not None, f"{what} must score {wanted}, got {outcome.kind}: {outcome.reason}"
            assert abs(outcome.value - wanted) < 1e-6, f"{what} must score {wanted}, got {outcome.value}"


def _check_repeats(reward: Reward, trajectories: list[Trajectory], outcomes: list[Outcome]) -> None:
    wanted = [outcome.value for outcome in outcomes]
    again = [outcome.value for outcome in reversed(_score(reward, trajectories[::-1]))]
    assert again == wanted, f"scores depend on the order of calls: {wanted}, then reversed {again}; keep no state"
    in_thread: list[Outcome] = []
    thread = threading.Thread(target=lambda: in_thread.extend(_score(reward, trajectories)))
    thread.start()
    thread.join()
    for first, second in zip(outcomes, in_thread, strict=True):
        reason = second.reason or second.value
        assert second.value == first.value, (
            f"in a thread the score is {reason}, in the main thread {first.value}; the inline launcher scores in a "
            "thread, where signal handlers cannot be set"
        )


def _check_odd_texts(reward: Reward, trajectory: Trajectory) -> None:
    for text in ODD_TEXTS:
        odd = replace(trajectory, text=text)
        outcome = _score(reward, [odd] if not isinstance(reward, GroupReward) else [odd, odd])[0]
        assert outcome.kind in ("", "unscored"), (
            f"completion {text!r:.40} gave {outcome.kind}: {outcome.reason}; a model will write it: return a number"
        )


def _check_odd_tokens(reward: Reward, trajectory: Trajectory, codec: TextCodec) -> None:
    """Tokens that no text has, with what they decode to: none but the prompt's, parts of characters, special ones."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 30, 30):
        ids = rng.integers(0, len(codec.tokenizer), count)
        generated = np.arange(count) > 0
        odd = replace(
            trajectory, token_ids=ids, loss_mask=generated, logprobs=np.zeros(count, np.float32), versions=ids * 0,
            text=codec.decode(ids[generated]),
        )  # fmt: skip
        outcome = _score(reward, [odd] if not isinstance(reward, GroupReward) else [odd, odd])[0]
        assert outcome.kind in ("", "unscored"), (
            f"tokens {ids.tolist()} gave {outcome.kind}: {outcome.reason}; a model will draw them: return a number"
        )
