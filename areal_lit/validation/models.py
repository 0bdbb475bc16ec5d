"""Rules of models: what is known about a path without loading it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.models import ModelFiles
from areal_lit.validation.walk import roles

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
    for role, given in roles(trainer).items():
        files = ModelFiles(given.model)
        if problem := files.problem():
            yield f"{role}.model.path: {problem}"
        elif files.tokenizer is not None and files.vocab_size is not None:
            # added tokens are not counted: some published models list one that they have no row for, and never use it
            num_tokens = files.tokenizer.get_vocab_size(with_added_tokens=False)
            if num_tokens > files.vocab_size:
                yield (
                    f"{role}.model: the tokenizer of {given.model.path!r} has {num_tokens} tokens, the model a "
                    f"vocabulary of {files.vocab_size}; give the tokenizer that belongs to the model, or set "
                    f"model.config.vocab_size to {num_tokens}"
                )
