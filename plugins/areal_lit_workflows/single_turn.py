"""Single turn: one prompt, one completion."""

from __future__ import annotations

from areal_lit.contracts.workflow import Episode, Workflow
from areal_lit.types import Prompt, Trajectory


class SingleTurn(Workflow):
    """Ask once: the prompt (text, or chat messages through the model's template) and one completion of it."""

    rewards_turns = False

    async def run(self, prompt: Prompt, episode: Episode) -> Trajectory:
        """The completion as an unscored trajectory."""
        completion = await episode.generate(episode.prompt_ids)
        return episode.trajectory(prompt, episode.prompt_ids, completion)
