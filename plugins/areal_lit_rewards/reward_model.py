"""Reward model: what a trained scalar head says of a completion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from areal_lit.contracts import GroupReward, Score, Strategy
from areal_lit.models import SCALAR_HEAD_FILE, ModelFiles
from areal_lit.types import FloatArray, Group, ModelSpec, Trajectory

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class RewardModel(GroupReward):
    """The score of a model that the algorithm `reward_model` trained, read after a trajectory's last token.

    It reads the very tokens that were generated, so policy and reward model must share one vocabulary. The samples of a
    prompt are scored together. Each reward worker loads a copy (``rewarding.num_workers``); scores have no fixed zero
    and no fixed scale.

    Args:
        model: the ``hf`` directory of a reward model's checkpoint.
        device: ``cpu``, ``cuda``, or ``auto``: cuda where there is one.
        max_tokens_per_microbatch: tokens that the model reads at once.
    """

    scores_steps = False

    def __init__(
        self,
        *,
        model: ModelSpec,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        max_tokens_per_microbatch: int = 16384,
    ) -> None:
        if max_tokens_per_microbatch < 1:
            raise ValueError(f"max_tokens_per_microbatch must be >= 1, got {max_tokens_per_microbatch}")
        self.model = model
        self.device = device
        self.max_tokens_per_microbatch = max_tokens_per_microbatch
        self._strategy: Strategy

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if problem := self._problem():
            yield problem
            return
        own, policys = ModelFiles(self.model).tokenizer, ModelFiles(trainer.policy.model).tokenizer
        if own is not None and policys is not None and own.get_vocab() != policys.get_vocab():
            yield (
                f"the reward model {self.model.path!r} has another vocabulary than policy.model "
                f"{trainer.policy.model.path!r}, whose tokens it is to read; train it from a model of the same family"
            )

    def setup(self) -> None:
        """Load the model. Raises ValueError for one without a scalar head."""
        from areal_lit_single.strategy import Single

        if problem := self._problem():
            raise ValueError(problem)
        self._strategy = Single(device=self.device, max_tokens_per_microbatch=self.max_tokens_per_microbatch)
        self._strategy.setup(self.model, head="score")

    def score_group(self, trajectories: Sequence[Trajectory]) -> Sequence[Score]:
        return [float(values[-1]) for values in self.values_after(trajectories)]

    def values_after(self, trajectories: Sequence[Trajectory]) -> list[FloatArray]:
        """What the model says after each token of trajectories of one prompt, [n] each."""
        from areal_lit.batching import pack, plan_shards, shard, unshard

        sequences = tuple(map(_tokens_alone, trajectories))
        batch = pack([Group(prompt=trajectories[0].prompt, trajectories=sequences)])
        plan = plan_shards(batch, num_shards=1, max_tokens=self.max_tokens_per_microbatch, packing="ffd")
        (microbatches,) = shard(batch, plan)
        outputs = self._strategy.forward(microbatches, frozenset({"value"}))
        whole = unshard(batch, plan, [outputs])
        assert whole.value_T is not None
        assert whole.final_value_S is not None
        value_T = whole.value_T.roll(-1)
        value_T[batch["length"].cumsum(0) - 1] = whole.final_value_S
        return [part.numpy() for part in value_T.split(batch["length"].tolist())]

    def _problem(self) -> str:
        """Why the model cannot score, and the way out; empty if it can."""
        files = ModelFiles(self.model)
        if problem := files.problem():
            return f"model.path: {problem}"
        if files.directory is None or not (Path(files.directory) / SCALAR_HEAD_FILE).is_file():
            return (
                f"model.path {self.model.path!r} holds no {SCALAR_HEAD_FILE}, so the model has no head to score with; "
                "give the hf directory of a checkpoint that algorithm reward_model wrote"
            )
        return ""


def _tokens_alone(trajectory: Trajectory) -> Trajectory:
    """What a score depends on, and where the prompt ends, which the model reads once for all samples."""
    import numpy as np

    n = len(trajectory.token_ids)
    return Trajectory(
        token_ids=trajectory.token_ids,
        loss_mask=trajectory.loss_mask & (np.arange(n) > 0),
        logprobs=np.zeros(n, dtype=np.float32),
        versions=np.full(n, -1, dtype=np.int64),
        prompt=trajectory.prompt,
    )
