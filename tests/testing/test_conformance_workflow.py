"""check_workflow passes sound workflows and fails each planted bug."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from areal_lit.contracts import Workflow
from areal_lit.testing import check_workflow, tiny_spec
from areal_lit.text import TextCodec


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path))


class Once(Workflow):
    async def run(self, prompt, episode):
        completion = await episode.generate(episode.prompt_ids)
        return episode.trajectory(prompt, episode.prompt_ids, completion)


class TwoTurns(Workflow):
    """The second turn follows the first's tokens and a fixed remark, all in one trajectory."""

    async def run(self, prompt, episode):
        first = await episode.generate(episode.prompt_ids, max_new_tokens=4)
        remark = episode.codec.encode(" sure? ")
        context = np.concatenate([episode.prompt_ids, first.token_ids, remark])
        second = await episode.generate(context, max_new_tokens=4)
        whole = episode.trajectory(prompt, context, second)
        drawn = slice(len(episode.prompt_ids), len(episode.prompt_ids) + len(first.token_ids))
        mask, logprobs, versions = whole.loss_mask.copy(), whole.logprobs.copy(), whole.versions.copy()
        mask[drawn], logprobs[drawn], versions[drawn] = True, first.logprobs, first.versions
        return replace(whole, loss_mask=mask, logprobs=logprobs, versions=versions)


class Branches(Workflow):
    async def run(self, prompt, episode):
        completions = [await episode.generate(episode.prompt_ids) for _ in range(2)]
        return [episode.trajectory(prompt, episode.prompt_ids, completion) for completion in completions]


class Drops(Workflow):
    async def run(self, prompt, episode):
        await episode.generate(episode.prompt_ids)


class Scores(Once):
    async def run(self, prompt, episode):
        return await episode.score(await super().run(prompt, episode))


class Reencodes(Workflow):
    """Trains on tokens that the engine never drew."""

    async def run(self, prompt, episode):
        completion = await episode.generate(episode.prompt_ids)
        whole = episode.trajectory(prompt, episode.prompt_ids, completion)
        again = episode.codec.encode(episode.codec.decode(completion.token_ids))[: len(completion.token_ids)]
        again = np.resize(np.append(again, 0), len(completion.token_ids))
        return replace(whole, token_ids=np.concatenate([episode.prompt_ids, again]))


class OtherContext(Workflow):
    """The engine saw one prompt, the trajectory shows another."""

    async def run(self, prompt, episode):
        completion = await episode.generate(np.append(episode.prompt_ids, 7))
        return episode.trajectory(prompt, episode.prompt_ids, completion)


class SharedState(Workflow):
    async def run(self, prompt, episode):
        self.token_ids = episode.prompt_ids
        completion = await episode.generate(self.token_ids)
        return episode.trajectory(prompt, self.token_ids, completion)


class Edited(Once):
    """Applies a change to the trajectory of ``Once``."""

    def change(self, trajectory):
        raise NotImplementedError

    async def run(self, prompt, episode):
        return self.change(await super().run(prompt, episode))


class TrainsPrompt(Edited):
    def change(self, trajectory):
        return replace(trajectory, loss_mask=np.arange(len(trajectory.token_ids)) > 0)


class OneVersion(Edited):
    def change(self, trajectory):
        return replace(trajectory, versions=np.where(trajectory.loss_mask, 9, -1))


class StaleLogprobs(Edited):
    def change(self, trajectory):
        return replace(trajectory, logprobs=np.where(trajectory.loss_mask, -0.5, 0).astype(np.float32))


class MaskedLogprobs(Edited):
    def change(self, trajectory):
        return replace(trajectory, logprobs=np.where(trajectory.loss_mask, trajectory.logprobs, -1).astype(np.float32))


class ShortMask(Edited):
    def change(self, trajectory):
        return replace(trajectory, loss_mask=trajectory.loss_mask[1:])


class IntMask(Edited):
    def change(self, trajectory):
        return replace(trajectory, loss_mask=trajectory.loss_mask.astype(np.int64))


class InfersStop(Edited):
    def change(self, trajectory):
        return replace(trajectory, stop_reason="length" if trajectory.num_generated >= 8 else "stop")


class NewPrompt(Edited):
    def change(self, trajectory):
        return replace(trajectory, prompt=replace(trajectory.prompt, prompt_id=99))


class FirstSample(Edited):
    def change(self, trajectory):
        return replace(trajectory, sample=0)


class NothingTrained(Edited):
    def change(self, trajectory):
        none = np.zeros(len(trajectory.token_ids), bool)
        return replace(trajectory, loss_mask=none)


class HidesErrors(Once):
    async def run(self, prompt, episode):
        try:
            return await super().run(prompt, episode)
        except ConnectionError:
            return None


class Uncancellable(Once):
    async def run(self, prompt, episode):
        try:
            return await super().run(prompt, episode)
        except asyncio.CancelledError:
            return None


class ReturnsText(Once):
    async def run(self, prompt, episode):
        return (await super().run(prompt, episode)).text


@pytest.mark.parametrize("workflow", [Once, TwoTurns, Branches, Drops, Scores])
def test_sound_workflows_pass(codec, workflow):
    check_workflow(workflow, codec)


@pytest.mark.parametrize(
    ("mutant", "message"),
    [
        (Reencodes, "token_ids of the trained tokens"),
        (OtherContext, "never decode and encode"),
        (SharedState, "never decode and encode|keep no state"),
        (TrainsPrompt, "not the start of a completion"),
        (OneVersion, "versions of the trained tokens"),
        (StaleLogprobs, "not the start of a completion"),
        (MaskedLogprobs, "logprobs must be 0"),
        (ShortMask, "one entry per token"),
        (IntMask, "must be boolean"),
        (InfersStop, "stop_reason must be carried"),
        (NewPrompt, "must be the prompt that was run"),
        (FirstSample, "the episode's, got 0"),
        (NothingTrained, "no token of the trajectory is trained"),
        (HidesErrors, "must leave run"),
        (Uncancellable, "CancelledError"),
        (ReturnsText, "got str"),
    ],
)
def test_planted_bugs_fail(codec, mutant, message):
    with pytest.raises(AssertionError, match=message):
        check_workflow(mutant, codec)
