"""Preferences from what a run sampled: of each prompt a completion that earned more, and one that earned less."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from areal_lit.contracts import PREVIEWED, DataModule, Preview, Source
from areal_lit.text import TextCodec
from areal_lit_data.columns import RowExamples, check_limits, select
from areal_lit_data.sampled_pairs import KEEP_MORE, Pair, pairs_of

log = logging.getLogger(__name__)


class PreferenceSamples(DataModule):
    """Completions of a finished run in pairs by their rewards, for `dpo` and `reward_model` (rejection sampling).

    They are read from the run's ``samples.jsonl``, which holds what its logger `samples` was told to keep: by default
    the best and the worst completion of one prompt per step. All completions of a prompt are compared, of whichever
    step; of equal rewards those drawn first are taken, which are nearest to the model that the run began with.
    Left out and counted are completions without a reward, without their tokens, or cut off by their budget.

    The fields ``chosen`` and ``rejected`` hold the very tokens that were drawn, their end included; ``chosen_text`` and
    ``rejected_text`` what they say, ``chosen_reward`` and ``rejected_reward`` what they earned. So the policy needs the
    tokenizer and chat template of the run; a pair whose prompt or text comes out otherwise is left out and counted.

    Args:
        run: the run's directory.
        margin: the rewards of a pair differ by more than this.
        pairs_per_prompt: at most so many: the best and the worst, the second best and the second worst, and so on.
        eval_share: of the prompts, held out for evaluation; 0 for none. Always the same ones, whatever the run.
        max_prompt_tokens: longer prompts are dropped and counted.
        max_examples: use at most that many pairs for training.
        max_eval_examples: use at most that many pairs for evaluation.
        name: of both sources, in metrics.
    """

    def __init__(
        self,
        *,
        run: str,
        margin: float = 0.0,
        pairs_per_prompt: int = 1,
        eval_share: float = 0.1,
        max_prompt_tokens: int | None = None,
        max_examples: int | None = None,
        max_eval_examples: int | None = None,
        name: str = "samples",
    ) -> None:
        check_limits(
            max_prompt_tokens=max_prompt_tokens, max_examples=max_examples, max_eval_examples=max_eval_examples
        )
        if not margin >= 0:
            raise ValueError(f"margin must be >= 0, got {margin}")
        if pairs_per_prompt < 1:
            raise ValueError(f"pairs_per_prompt must be >= 1, got {pairs_per_prompt}")
        if not 0 <= eval_share < 1:
            raise ValueError(f"eval_share must be in [0, 1), got {eval_share}")
        self.run = run
        self.margin = margin
        self.pairs_per_prompt = pairs_per_prompt
        self.eval_share = eval_share
        self.max_prompt_tokens = max_prompt_tokens
        self.max_examples = max_examples
        self.max_eval_examples = max_eval_examples
        self.name = name
        self._train: dict[str, Source] = {}
        self._evaluation: dict[str, Source] = {}

    def evaluation_names(self) -> Sequence[str]:
        return [self.name] if self.eval_share else []

    def preview(self) -> Mapping[str, Preview]:
        train, held_out = self._split(self._pairs()[0])
        sides = {self.name: train, **({f"evaluation {self.name}": held_out} if self.eval_share else {})}
        return {
            name: Preview(
                examples=RowExamples(pairs[:PREVIEWED], Pair.example), max_prompt_tokens=self.max_prompt_tokens
            )
            for name, pairs in sides.items()
        }

    def setup(self, codec: TextCodec) -> None:
        pairs, left_out = self._pairs()
        if left_out:
            log.warning("%s: left out completions: %s", self.run, left_out)
        train, held_out = self._split(self._as_drawn(pairs, codec))
        self._train = {self.name: self._source(train, codec, self.max_examples)}
        if self.eval_share:
            self._evaluation = {self.name: self._source(held_out, codec, self.max_eval_examples)}

    def train(self) -> Mapping[str, Source]:
        return self._train

    def evaluation(self) -> Mapping[str, Source]:
        return self._evaluation

    def _pairs(self) -> tuple[list[Pair], str]:
        return pairs_of(self.run, margin=self.margin, per_prompt=self.pairs_per_prompt)

    def _as_drawn(self, pairs: Sequence[Pair], codec: TextCodec) -> list[Pair]:
        """The pairs that this tokenizer and template read as the run did. Raises ValueError if there are none."""
        problems = [pair.misreading(codec) for pair in pairs]
        kept = [pair for pair, problem in zip(pairs, problems, strict=True) if not problem]
        told = next(filter(None, problems), "")
        if not kept:
            raise ValueError(
                f"{self.run}: none of its {len(pairs)} pairs is read as the run drew it: {told}; give the run's "
                "policy.model (or one that it trained) and template_kwargs"
            )
        if told:
            log.warning("%s: left out %d of %d pairs: %s", self.run, len(pairs) - len(kept), len(pairs), told)
        return kept

    def _split(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Pair]]:
        """Pairs for training and for evaluation. Raises ValueError where one of them would have none."""
        train = [pair for pair in pairs if pair.place >= self.eval_share]
        held_out = [pair for pair in pairs if pair.place < self.eval_share]
        if not train or (self.eval_share and not held_out):
            raise ValueError(
                f"{self.run}: of {len(pairs)} pairs {len(train)} are left for training and {len(held_out)} for "
                f"evaluation with eval_share {self.eval_share:g}; change it (0 holds out none), or {KEEP_MORE}"
            )
        return train, held_out

    def _source(self, pairs: Sequence[Pair], codec: TextCodec, limit: int | None) -> Source:
        fitting = {"max_prompt_tokens": self.max_prompt_tokens, "limit": limit}
        return Source(examples=select(RowExamples(pairs, Pair.example), codec, name=self.run, **fitting))
