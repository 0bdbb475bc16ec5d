"""Pairs of what a run sampled: of one prompt a completion that earned more, and one that earned less."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from areal_lit.run_records import Entry, RunRecords, Sample
from areal_lit.text import TextCodec
from areal_lit.types import Example

KEEP_MORE = "let the run's logger samples keep more (groups_per_step, samples_per_group)"


class Pair(NamedTuple):
    """Where two completions of one prompt are in a run's files.

    ``place`` is where their prompt lies in [0, 1): prompts are spread evenly, and each is always at the same place.
    """

    chosen: Entry
    rejected: Entry
    place: float

    @property
    def sides(self) -> Mapping[str, Entry]:
        """Both by the names that they have as fields."""
        return {"chosen": self.chosen, "rejected": self.rejected}

    def example(self) -> Example:
        """The pair as drawn, read from the run's files."""
        fields: dict[str, object] = {}
        for side, entry in self.sides.items():
            sample = entry.read()
            assert sample.tokens is not None
            fields |= {side: sample.tokens.ids, f"{side}_text": sample.completion, f"{side}_reward": sample.reward}
        prompt = sample.prompt  # of both sides
        return Example(prompt=prompt if isinstance(prompt, str) else tuple(prompt), fields=fields)

    def misreading(self, codec: TextCodec) -> str:
        """In what a side comes out otherwise than in the run, which knew its tokens; empty if nowhere."""
        example = self.example()
        num_prompt = len(codec.encode_prompt(example))
        for side, entry in self.sides.items():
            ids, wanted = example.fields[side], example.fields[f"{side}_text"]
            text = codec.decode(np.array(ids, dtype=np.int64))
            if text != wanted:
                return f"the tokens of {wanted!r:.60} are {text!r:.60} here"
            if num_prompt + len(ids) != entry.head.num_tokens:
                return (
                    f"prompt {example.prompt!r:.60} has {num_prompt} tokens here and {entry.head.num_tokens - len(ids)}"
                    " in the run, tokens of tools and of later turns included"
                )
        return ""


def pairs_of(run: str, *, margin: float, per_prompt: int) -> tuple[list[Pair], str]:
    """The pairs of a run, prompts in the order in which they were first drawn; and which completions were left out.

    Args:
        run: its directory.
        margin: rewards of a pair differ by more.
        per_prompt: at most so many: the best and the worst, the second best and the second worst, and so on.

    Raises:
        ValueError: for a run that goes on, has no samples, or none that make a pair.
    """
    completions, left_out = _completions(run)
    pairs = [
        Pair(chosen, rejected, _place(prompt))
        for (_, prompt), entries in completions.items()
        for chosen, rejected in islice(_extremes(entries), per_prompt)
        if _reward(chosen) - _reward(rejected) > margin
    ]
    if not pairs:
        rewards = Counter(map(_rewards, completions.values()))
        seen = ", ".join(f"{num} with {told}" for told, num in rewards.most_common(5))
        raise ValueError(
            f"{run}: of {len(completions)} prompts none has two different completions whose rewards differ by more "
            f"than margin {margin:g}: {seen}; lower margin, {KEEP_MORE}, or choose a run that fails at times"
        )
    return pairs, left_out


def _extremes(entries: Sequence[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """The best and the worst, the second best and the second worst, and so on; of equal ones the first comes first."""
    return zip(sorted(entries, key=lambda entry: -_reward(entry)), sorted(entries, key=_reward), strict=True)


def _completions(run: str) -> tuple[Mapping[tuple[str, str], Sequence[Entry]], str]:
    """The different completions of each source and prompt, as they were logged; and which were left out."""
    entries = _logged(run)
    completions: defaultdict[tuple[str, str], dict[str, Entry]] = defaultdict(dict)
    unfit: Counter[str] = Counter()
    for entry in entries:
        sample = entry.read()
        if problem := _problem(sample):
            unfit[problem] += 1
        else:
            prompt = json.dumps(sample.prompt, sort_keys=True)
            completions[sample.source, prompt].setdefault(sample.completion, entry)
    left_out = ", ".join(f"{num} of {len(entries)} {problem}" for problem, num in unfit.items())
    if not completions:
        raise ValueError(f"{run}: no completion can be compared: {left_out}; choose another run")
    return {prompt: list(different.values()) for prompt, different in completions.items()}, left_out


def _logged(run: str) -> Sequence[Entry]:
    records = RunRecords(Path(run).expanduser())
    if records.is_in_use:
        raise ValueError(
            f"{run} still goes on, and a resumed run would find other pairs; wait for its end, or copy its "
            "samples.jsonl into a directory of its own"
        )
    index = records.samples()
    index.refresh()
    if not index.entries:
        raise ValueError(
            f"{index.path} holds no samples; the logger samples writes them, which a recipe without loggers has by "
            "itself: choose a run that has them"
        )
    return index.entries


def _problem(sample: Sample) -> str:
    """Why a completion is compared with no other, in words; empty if it is."""
    if sample.reward is None:
        return "without a reward"
    if sample.stop_reason == "length":
        return "cut off by their budget"
    return "without their tokens (see max_tokens of the logger samples)" if sample.tokens is None else ""


def _place(prompt: str) -> float:
    return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8]) / 2**64


def _reward(entry: Entry) -> float:
    assert entry.head.reward is not None
    return entry.head.reward


def _rewards(entries: Sequence[Entry]) -> str:
    """Those of a prompt, as few words as say it."""
    rewards = sorted(map(_reward, entries))
    if len(rewards) == 1:
        return f"{rewards[0]:g} alone"
    return f"all {rewards[0]:g}" if rewards[0] == rewards[-1] else f"from {rewards[0]:g} to {rewards[-1]:g}"
