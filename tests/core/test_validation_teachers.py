"""Rules of teachers: one broken setting each, and the sentence that names it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from areal_lit import Role, Rollout, Trainer
from areal_lit.contracts import Output
from areal_lit.models import resolve
from areal_lit.teacher_server import TeacherServer
from areal_lit.testing import FakeBackend
from areal_lit.types import ModelSpec
from areal_lit.validation import broken_rules, tokenizer_notes
from areal_lit_algorithms.distill import Distill
from areal_lit_algorithms.grpo import GRPO
from areal_lit_data.arithmetic import Arithmetic
from areal_lit_inference.transformers import Transformers
from areal_lit_launchers.local import Local
from areal_lit_optimizers.adamw import AdamW
from areal_lit_rewards.exact_match import ExactMatch
from areal_lit_single.strategy import Single
from areal_lit_transports.file import File
from areal_lit_workflows.single_turn import SingleTurn

MODEL = ModelSpec(path="package:areal_lit_recipes/quickstart_model")
CONFIG = json.loads((Path(resolve(MODEL.path)) / "config.json").read_text())
BACKEND = Transformers()


class Plain(Single):
    """A strategy that offers what every one does."""

    offers: ClassVar[frozenset[Output]] = frozenset({"logprob", "entropy", "value"})


class Mute(Transformers):
    """A backend that scores nothing."""

    from areal_lit.contracts import InferenceBackend

    score = InferenceBackend.score
    score_topk = InferenceBackend.score_topk


def on_ranks(**changes: Any) -> Role:
    return Role(**{"model": MODEL, "strategy": Single(), "num_threads": 1, **changes})


def served(**changes: Any) -> TeacherServer:
    return TeacherServer(**{"model": MODEL, "inference": Transformers(), **changes})


def trainer(**changes: Any) -> Trainer:
    """A valid distillation, changed."""
    given: dict[str, Any] = {
        "algorithm": Distill(), "policy": on_ranks(optimizer=AdamW(lr=1e-3)), "data": Arithmetic(),
        "launcher": Local(), "max_steps": 2, "inference": BACKEND, "transport": File(), "workflow": SingleTurn(),
        "reward": ExactMatch(), "rollout": Rollout(groups_per_step=4, samples_per_group=1), "teacher": on_ranks(),
    }  # fmt: skip
    return Trainer(**{**given, **changes})


def of_size(size: int) -> ModelSpec:
    return replace(MODEL, config={**CONFIG, "vocab_size": size})


def other_tokenizer(directory: Path) -> ModelSpec:
    """The quickstart's model, two of whose tokens changed places."""
    for file in Path(resolve(MODEL.path)).iterdir():
        (directory / file.name).write_bytes(file.read_bytes())
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[10:12]
    vocab[first], vocab[second] = vocab[second], vocab[first]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    return ModelSpec(path=str(directory))


TOPK, VOCABULARY = Distill(compare="top_k", top_k=8), Distill(compare="vocabulary")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"teacher": None, "teacher_server": served()},
        {"algorithm": TOPK},
        {"algorithm": TOPK, "teacher": None, "teacher_server": served()},
        {"algorithm": VOCABULARY, "teacher": on_ranks(colocate_with="policy")},
        {"teacher": on_ranks(strategy=Plain())},
        {"teacher": on_ranks(model=of_size(128))},
    ],
)
def test_what_can_work_is_valid(changes: dict[str, Any]) -> None:
    assert broken_rules(trainer(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        (
            {"teacher": None},
            "teacher is missing: Distill needs that role; add the section below with the path of a better model",
        ),
        ({"teacher_server": served()}, "teacher and teacher_server are both given"),
        (
            {"algorithm": GRPO(kl_weight=0.0), "teacher": None, "teacher_server": served()},
            "GRPO learns from no teacher",
        ),
        ({"algorithm": GRPO()}, "teacher is given but GRPO does not use it"),
        ({"teacher": None, "teacher_server": served(inference=BACKEND)}, "is the very object of inference"),
        (
            {"algorithm": VOCABULARY, "teacher": None, "teacher_server": served()},
            "teacher_server cannot tell log-probs of a whole vocabulary for every token; compare its top_k, or give",
        ),
        ({"algorithm": VOCABULARY}, "teacher.colocate_with: policy, or compare the teacher's top_k"),
        (
            {"algorithm": VOCABULARY, "teacher": on_ranks(strategy=Plain(), colocate_with="policy")},
            "teacher.strategy Plain does not offer divergence; choose another strategy, or compare sampled tokens only",
        ),
        ({"algorithm": TOPK, "teacher": on_ranks(strategy=Plain())}, "teacher.strategy Plain does not offer topk"),
        ({"teacher": None, "teacher_server": served(inference=Mute())}, "Mute has no score, which teacher needs"),
        (
            {"algorithm": TOPK, "teacher": None, "teacher_server": served(inference=Mute())},
            "Mute has no score_topk, which topk needs; choose another backend, such as transformers, or give the",
        ),
        (
            {"algorithm": Distill(compare="top_k", top_k=65)},
            "teacher: the 65 likeliest tokens are wanted of a vocabulary of 64; ask for at most as many",
        ),
        (
            {"algorithm": TOPK, "teacher": on_ranks(model=of_size(128))},
            "teacher.model has a vocabulary of 128, the policy one of 64: their distributions are over different",
        ),
        (
            {"policy": on_ranks(optimizer=AdamW(lr=1e-3), model=of_size(128))},
            "teacher.model has a vocabulary of 64, fewer",
        ),
        (
            {"teacher": None, "teacher_server": served(model=ModelSpec(path="/nowhere/at/all"))},
            "teacher_server.model.path: model path '/nowhere/at/all' does not exist",
        ),
    ],
)
def test_what_cannot_work_is_told_with_a_way_out(changes: dict[str, Any], rule: str) -> None:
    assert any(rule in told for told in broken_rules(trainer(**changes))), broken_rules(trainer(**changes))


@pytest.mark.parametrize("way", ["ranks", "server"])
def test_models_that_read_token_ids_differently_are_refused(tmp_path: Path, way: str) -> None:
    model = other_tokenizer(tmp_path)
    roles = (
        {"teacher": on_ranks(model=model)}
        if way == "ranks"
        else {"teacher": None, "teacher_server": served(model=model)}
    )
    (rule,) = broken_rules(trainer(**roles))
    assert rule.startswith("teacher" if way == "ranks" else "teacher_server")
    assert "model: token 10 is " in rule
    assert "give a model with the policy's tokenizer" in rule


def test_a_teacher_of_whose_tokens_nothing_is_known_is_noted(tmp_path: Path) -> None:
    model = other_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    unknown = trainer(teacher=on_ranks(model=model), reference=on_ranks())
    (note,) = tokenizer_notes(unknown)
    assert note.startswith(f"teacher.model: {model.path!r} has no tokenizer.json that can be read")
    assert list(tokenizer_notes(trainer())) == []


def test_a_served_teacher_is_of_the_right_kind() -> None:
    (rule,) = broken_rules(trainer(teacher=None, teacher_server=FakeBackend()))
    assert rule.startswith("teacher_server must be of a class derived from TeacherServer, got")
