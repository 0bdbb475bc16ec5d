"""Rules of teachers: there is one way to ask it, and whoever is asked can answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_lit.contracts import InferenceBackend
from areal_lit.models import ModelFiles
from areal_lit.validation.walk import models, roles

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

OF_TEACHERS = frozenset({"teacher", "topk", "divergence"})


def teacher_rules(trainer: Trainer) -> Iterator[str]:
    """A teacher is given once if one is needed, and can say what is wanted of it."""
    wanted, name = OF_TEACHERS & trainer.algorithm.needs, type(trainer.algorithm).__name__
    if trainer.teacher is not None and trainer.teacher_server is not None:
        yield "teacher and teacher_server are both given, and there is one teacher; remove one of the sections"
    if trainer.teacher_server is not None and not wanted:
        yield f"teacher_server is given but {name} learns from no teacher; remove the section, or choose distill"
    yield from _served_rules(trainer)
    yield from _strategy_rules(trainer)
    if wanted - {"teacher"}:
        yield from _vocabulary_rules(trainer)


def _served_rules(trainer: Trainer) -> Iterator[str]:
    server, needs = trainer.teacher_server, trainer.algorithm.needs
    if server is None:
        return
    backend = type(server.inference)
    if server.inference is trainer.inference:
        yield "teacher_server.inference is the very object of inference; construct one for each"
    if "divergence" in needs:
        yield (
            "teacher_server cannot tell log-probs of a whole vocabulary for every token; compare its top_k, or give "
            "the teacher a `teacher:` section with colocate_with: policy"
        )
    for need, method in (("teacher", "score"), ("topk", "score_topk")):
        if need in needs and getattr(backend, method) is getattr(InferenceBackend, method):
            yield (
                f"teacher_server.inference {backend.__name__} has no {method}, which {need} needs; choose another "
                "backend, such as transformers, or give the teacher ranks in a `teacher:` section"
            )


def _strategy_rules(trainer: Trainer) -> Iterator[str]:
    """Strategies offer the outputs that are asked of them, and compare vocabularies on the same ranks."""
    needs, present = trainer.algorithm.needs, roles(trainer)
    for role in ("policy", "teacher"):
        for output in sorted({"topk", "divergence"} & needs):
            if role in present and output not in present[role].strategy.offers:
                yield (
                    f"{role}.strategy {type(present[role].strategy).__name__} does not offer {output}; choose another "
                    "strategy, or compare sampled tokens only"
                )
    if "divergence" in needs and "teacher" in present:
        places = {present[role].colocate_with or role for role in ("policy", "teacher")}
        if len(places) > 1:
            yield (
                "teacher lives on ranks of its own, but whole vocabularies are compared where the policy is; set "
                "teacher.colocate_with: policy, or compare the teacher's top_k"
            )


def _vocabulary_rules(trainer: Trainer) -> Iterator[str]:
    """Policy and teacher have one vocabulary, padding included, and as many tokens as are asked for."""
    sizes = {name: ModelFiles(model).vocab_size for name, model in models(trainer).items()}
    own = sizes["policy"]
    for name in ("teacher", "teacher_server"):
        size = sizes.get(name)
        if own is not None and size is not None and size > own:
            yield (
                f"{name}.model has a vocabulary of {size}, the policy one of {own}: their distributions are over "
                "different tokens; compare sampled tokens only, or give a teacher of the policy's size"
            )
        if size is not None and "topk" in trainer.algorithm.needs and trainer.algorithm.num_topk > size:
            yield (
                f"{name}: the {trainer.algorithm.num_topk} likeliest tokens are wanted of a vocabulary of {size}; ask "
                "for at most as many"
            )
