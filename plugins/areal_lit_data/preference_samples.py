"""Preferences from what a run sampled: of each prompt a completion that earned more, and one that earned less."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from areal_lit.contracts import PREVIEWED, DataModule, Preview, Source
from areal_lit.run_records import Entry, Head, RunRecords, Sample
from areal_lit.text import TextCodec
from areal_lit.types import Example
from areal_lit_data.columns import Row, RowExamples, check_limits, select

KEEP_MORE = "let the run's logger samples keep more (groups_per_step, samples_per_group)"

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
            name: Preview(examples=RowExamples(pairs[:PREVIEWED], as_example), max_prompt_tokens=self.max_prompt_tokens)
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

    def _source(self, pairs: Sequence[Row], codec: TextCodec, limit: int | None) -> Source:
        fitting = {"max_prompt_tokens": self.max_prompt_tokens, "limit": limit}
        return Source(examples=select(RowExamples(pairs, as_example), codec, name=self.run, **fitting))

    def _pairs(self) -> tuple[list[Row], str]:
        """Where each pair's sides are, prompts in the order in which they were first drawn; and what was left out.

        Raises ValueError where the run has no samples, or none that make a pair.
        """
        of_prompt, left_out = self._completions()
        pairs = [pair for entries in of_prompt.values() for pair in self._pairs_of(entries)]
        if not pairs:
            rewards = Counter(_rewards(entry.head for entry in entries) for entries in of_prompt.values())
            seen = ", ".join(f"{num} with {told}" for told, num in rewards.most_common(5))
            raise ValueError(
                f"{self.run}: of {len(of_prompt)} prompts none has two different completions whose rewards differ by "
                f"more than margin {self.margin:g}: {seen}; lower margin, {KEEP_MORE}, or choose a run that fails at "
                "times"
            )
        return pairs, left_out

    def _pairs_of(self, entries: Sequence[Entry]) -> Iterator[Row]:
        best = sorted(entries, key=lambda entry: -_reward(entry.head))
        worst = sorted(entries, key=lambda entry: _reward(entry.head))
        for chosen, rejected in islice(zip(best, worst, strict=True), self.pairs_per_prompt):
            if _reward(chosen.head) - _reward(rejected.head) > self.margin:
                yield {"chosen": chosen, "rejected": rejected}

    def _completions(self) -> tuple[Mapping[tuple[str, str], list[Entry]], str]:
        """The different completions of each prompt of each source, as they were logged; and what is none of them."""
        records = RunRecords(Path(self.run).expanduser())
        if records.goes_on:
            raise ValueError(
                f"{self.run} still goes on, and a resumed run would find other pairs; wait for its end, or copy its "
                "samples.jsonl into a directory of its own"
            )
        index = records.samples()
        index.refresh()
        if not index.entries:
            raise ValueError(
                f"{index.path} holds no samples; the logger samples writes them, which a recipe without loggers has by "
                "itself: choose a run that has them"
            )
        of_prompt: defaultdict[tuple[str, str], dict[str, Entry]] = defaultdict(dict)
        unfit: Counter[str] = Counter()
        for entry in index.entries:
            sample = entry.read()
            if problem := _unfit(sample):
                unfit[problem] += 1
            else:
                of_prompt[sample.source, _spelled(sample)].setdefault(sample.completion, entry)
        left_out = ", ".join(f"{num} of {len(index.entries)} {problem}" for problem, num in unfit.items())
        if not of_prompt:
            raise ValueError(f"{self.run}: no completion can be compared: {left_out}; choose another run")
        return {prompt: list(completions.values()) for prompt, completions in of_prompt.items()}, left_out

    def _as_drawn(self, pairs: Sequence[Row], codec: TextCodec) -> list[Row]:
        """The pairs that this tokenizer and template read as the run did. Raises ValueError if there are none."""
        problems = [_misread(pair, codec) for pair in pairs]
        kept = [pair for pair, problem in zip(pairs, problems, strict=True) if not problem]
        if not kept:
            raise ValueError(
                f"{self.run}: none of its {len(pairs)} pairs is read as the run drew it: {problems[0]}; give the "
                "run's policy.model (or one that it trained) and template_kwargs"
            )
        if num_lost := len(pairs) - len(kept):
            told = next(problem for problem in problems if problem)
            log.warning("%s: left out %d of %d pairs: %s", self.run, num_lost, len(pairs), told)
        return kept

    def _split(self, pairs: Sequence[Row]) -> tuple[list[Row], list[Row]]:
        """Pairs for training and for evaluation. Raises ValueError where one of them would have none."""
        train: list[Row] = []
        held_out: list[Row] = []
        for pair in pairs:
            side = held_out if _place(pair["chosen"].read()) < self.eval_share else train
            side.append(pair)
        if not train or (self.eval_share and not held_out):
            raise ValueError(
                f"{self.run}: of {len(pairs)} pairs {len(train)} are left for training and {len(held_out)} for "
                f"evaluation with eval_share {self.eval_share:g}; change it (0 holds out none), or {KEEP_MORE}"
            )
        return train, held_out


def as_example(pair: Row) -> Example:
    """A pair as drawn, read from the run's files."""
    sides: dict[str, Sample] = {side: pair[side].read() for side in ("chosen", "rejected")}
    prompt = sides["chosen"].prompt
    fields: dict[str, object] = {}
    for side, sample in sides.items():
        assert sample.tokens is not None
        fields |= {side: sample.tokens.ids, f"{side}_text": sample.completion, f"{side}_reward": sample.reward}
    return Example(prompt=prompt if isinstance(prompt, str) else tuple(prompt), fields=fields)


def _unfit(sample: Sample) -> str:
    """Why a completion is compared with no other, in words; empty if it is."""
    if sample.reward is None:
        return "without a reward"
    if sample.stop_reason == "length":
        return "cut off by their budget"
    return "without their tokens (see max_tokens of the logger samples)" if sample.tokens is None else ""


def _misread(pair: Row, codec: TextCodec) -> str:
    """In what a side comes out otherwise than in the run, which knew its tokens; empty if nowhere."""
    example = as_example(pair)
    num_prompt = len(codec.encode_prompt(example))
    for side in ("chosen", "rejected"):
        head, ids = pair[side].head, example.fields[side]
        text, wanted = codec.decode(np.array(ids, dtype=np.int64)), example.fields[f"{side}_text"]
        if text != wanted:
            return f"the tokens of {wanted!r:.60} are {text!r:.60} here"
        if num_prompt + len(ids) != head.num_tokens:
            return (
                f"prompt {example.prompt!r:.60} has {num_prompt} tokens here and {head.num_tokens - len(ids)} in the "
                "run, tokens of tools and of later turns included"
            )
    return ""


def _spelled(sample: Sample) -> str:
    return json.dumps(sample.prompt, sort_keys=True)


def _place(sample: Sample) -> float:
    """Where a prompt lies in [0, 1), evenly spread and always the same."""
    digest = hashlib.sha256(_spelled(sample).encode()).digest()
    return int.from_bytes(digest[:8]) / 2**64


def _reward(head: Head) -> float:
    assert head.reward is not None
    return head.reward


def _rewards(heads: Iterable[Head]) -> str:
    """Those of a prompt, as few words as say it."""
    rewards = sorted(map(_reward, heads))
    if len(rewards) == 1:
        return f"{rewards[0]:g} alone"
    return f"all {rewards[0]:g}" if rewards[0] == rewards[-1] else f"from {rewards[0]:g} to {rewards[-1]:g}"
