"""Rules of models: what is known about a path without loading it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.models import ModelFiles
from areal_lit.types import ModelSpec
from areal_lit.validation.walk import models

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def template_rules(trainer: Trainer) -> Iterator[str]:
    """For data whose prompts are chat messages: the policy's tokenizer has a template for them."""
    if ModelFiles(trainer.policy.model).has_chat_template is False:
        yield (
            f"prompts are chat messages, but the tokenizer of {trainer.policy.model.path!r} has no chat template; give "
            "them as plain text (chat: false, a template), or choose an instruct model"
        )


def model_rules(trainer: Trainer) -> Iterator[str]:
    """There is a model at each role's path, and its tokenizer speaks its language."""
    for name, model in models(trainer).items():
        files = ModelFiles(model)
        if problem := files.problem():
            yield f"{name}.model.path: {problem}"
        elif files.tokenizer is not None and files.vocab_size is not None:
            # added tokens are not counted: some published models list one that they have no row for, and never use it
            num_tokens = files.tokenizer.get_vocab_size(with_added_tokens=False)
            if num_tokens > files.vocab_size:
                yield (
                    f"{name}.model: the tokenizer of {model.path!r} has {num_tokens} tokens, the model a "
                    f"vocabulary of {files.vocab_size}; give the tokenizer that belongs to the model, or set "
                    f"model.config.vocab_size to {num_tokens}"
                )


def same_token_rules(trainer: Trainer) -> Iterator[str]:
    """A token id means the same to every model of a run, and each has a place for all that the policy can draw."""
    policy = trainer.policy.model
    own_size = ModelFiles(policy).vocab_size
    for name, model in models(trainer).items():
        size = ModelFiles(model).vocab_size
        if own_size is not None and size is not None and size < own_size:
            yield (
                f"{name}.model has a vocabulary of {size}, fewer than the {own_size} tokens that the policy can draw; "
                "give a model of the policy's family, or one with as many"
            )
        if (found := _first_difference(policy, model)) is not None:
            number, own, other = found
            yield (
                f"{name}.model: token {number} is {own!r} to the policy and {other!r} to {model.path!r}, so what they "
                "say of it cannot be compared; give a model with the policy's tokenizer"
            )


def tokenizer_notes(trainer: Trainer) -> Iterator[str]:
    """Models beside the policy of whose tokens nothing is known."""
    own = ModelFiles(trainer.policy.model)
    for name, model in models(trainer).items():
        files = ModelFiles(model)
        if files.directory not in (None, own.directory) and files.tokenizer is None:
            yield (
                f"{name}.model: {model.path!r} has no tokenizer.json that can be read, so whether its tokens are the "
                "policy's cannot be checked; put the files of its tokenizer beside it"
            )


def _first_difference(policy: ModelSpec, other: ModelSpec) -> tuple[int, str, str] | None:
    """The lowest token id that two tokenizers read differently, with both readings."""
    own, others = ModelFiles(policy), ModelFiles(other)
    if own.directory == others.directory or own.tokenizer is None or others.tokenizer is None:
        return None
    read = {number: text for text, number in own.tokenizer.get_vocab().items()}
    differing = (
        (number, read[number], text)
        for text, number in others.tokenizer.get_vocab().items()
        if read.get(number, text) != text
    )
    return min(differing, default=None)
