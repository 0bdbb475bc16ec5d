"""Rules of lengths: an episode must fit the model and a micro-batch, and a sequence is never split."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from areal_lit.models import ModelFiles
from areal_lit.types import ModelSpec, Sampling
from areal_lit.validation.walk import models, roles, walk

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


def _config_in_files(spec: ModelSpec) -> Mapping[str, Any]:
    return ModelFiles(spec).config


def sequence_limit(
    trainer: Trainer, config_of: Callable[[ModelSpec], Mapping[str, Any]] = _config_in_files
) -> tuple[int, str]:
    """Tokens of the longest sequence that every role can take, and the setting that says so.

    Args:
        config_of: the Hugging Face configuration of a text model, as far as it is known; by default what can be told
            without loading anything.
    """
    limits: dict[str, int] = {}
    for name, role in roles(trainer).items():
        limits[f"{name}.strategy.max_tokens_per_microbatch"] = role.strategy.max_tokens_per_microbatch
    for name, model in models(trainer).items():
        if isinstance(num_positions := config_of(model).get("max_position_embeddings"), int):
            limits[f"{name}.model's max_position_embeddings"] = num_positions
    setting = min(limits, key=lambda key: limits[key])
    return limits[setting], setting


def samplings(trainer: Trainer) -> Mapping[str, Sampling]:
    """How training draws tokens, by path: the trainer's way, and those that sources of its data bring."""
    found = {path: value for path, value in walk("data", trainer.data) if isinstance(value, Sampling)}
    return {"rollout.sampling": trainer.rollout.sampling, **found}


def length_rules(trainer: Trainer) -> Iterator[str]:
    """What one episode may generate must fit, with at least a token of prompt."""
    limit, setting = sequence_limit(trainer)
    for path, sampling in samplings(trainer).items():
        if sampling.max_new_tokens >= limit:
            yield (
                f"{path}.max_new_tokens {sampling.max_new_tokens} and a prompt do not fit {setting} {limit}, and a "
                "sequence is never split; raise the latter or lower the former"
            )
