"""Rules of data: its first examples must be readable, fit the model, and be worth a reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.contracts import Algorithm, Preview, Reward
from areal_lit.models import ModelFiles
from areal_lit.readable import messages_of, whole_characters
from areal_lit.types import Example
from areal_lit.validation.lengths import sequence_limit
from areal_lit.validation.walk import data_modules

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def example_rules(trainer: Trainer) -> Iterator[str]:
    """Every rule that the first examples of every source break."""
    model = ModelFiles(trainer.policy.model)
    for path, module in data_modules(trainer).items():
        try:
            previews = module.preview()
        except (ValueError, OSError) as error:
            yield f"{path}: {error}"
            continue
        for name, preview in previews.items():
            judge = trainer.algorithm if trainer.algorithm.offline else preview.reward or trainer.reward
            if judge is not None:
                yield from _judge_rules(f"{path}: source {name!r}", preview, judge)
            yield from _prompt_rules(f"{path}: source {name!r}", preview, model, trainer)


def _judge_rules(where: str, preview: Preview, judge: Algorithm | Reward) -> Iterator[str]:
    """A single row that nothing can score is left out by a run; all of them are a mistake."""
    problem = ""
    for example in preview.examples:
        try:
            judge.check(example)
        except (ValueError, LookupError) as error:
            problem = problem or str(error)
        else:
            return
    if problem:
        yield f"{where}: none of its first {len(preview.examples)} examples suits {type(judge).__name__}: {problem}"


def _prompt_rules(where: str, preview: Preview, model: ModelFiles, trainer: Trainer) -> Iterator[str]:
    if model.tokenizer is None:
        return
    encoded = [model.tokenizer.encode(_text(example), add_special_tokens=False).ids for example in preview.examples]
    largest = max((token for ids in encoded for token in ids), default=0)
    if model.vocab_size is not None and largest >= model.vocab_size:
        yield (
            f"{where}: a prompt holds token {largest}, but policy.model has a vocabulary of {model.vocab_size}; give "
            "the tokenizer that belongs to the model"
        )
    generated = 0 if trainer.algorithm.offline else (preview.sampling or trainer.rollout.sampling).max_new_tokens
    longest = max(map(len, encoded), default=0)
    limit, setting = sequence_limit(trainer)
    if preview.max_prompt_tokens is None and generated < limit < longest + generated:
        yield (
            f"{where}: a prompt of {longest} tokens and max_new_tokens {generated} do not fit {setting} {limit}; set "
            f"max_prompt_tokens {limit - generated} to leave such rows out, or change one of the others"
        )


def _text(example: Example) -> str:
    """The text of a prompt, any half of a surrogate pair replaced; what a chat template adds is not counted."""
    return whole_characters("".join(content for _, content in messages_of(example.prompt)))
