"""ReasoningGym: tasks by name, difficulty, held-out entries, gold answers that their verifier accepts."""

from __future__ import annotations

import pytest

from areal_lit.testing import check_data, tiny_spec
from areal_lit.text import TextCodec

pytest.importorskip("reasoning_gym", reason="needs the extra: pip install 'areal-lit[reasoning-gym]'")

from areal_lit_data.reasoning_gym import ANSWER_HINT, ReasoningGym, Task


@pytest.fixture
def codec(tmp_path):
    return TextCodec(tiny_spec(tmp_path))


def test_keeps_the_contract(codec):
    tasks = {"leg_counting": Task(weight=2.0), "basic_arithmetic": Task(config={"min_digits": 1, "max_digits": 2})}
    check_data(lambda: ReasoningGym(tasks=tasks, size=50, eval_size=5), codec)


def test_sources_are_tasks_with_their_weights(codec):
    data = ReasoningGym(tasks={"leg_counting": Task(weight=2.0), "gcd": Task()}, size=7, eval_size=3)
    data.setup(codec)
    assert {name: (source.weight, len(source.examples)) for name, source in data.train().items()} == {
        "leg_counting": (2.0, 7),
        "gcd": (1.0, 7),
    }
    assert {name: len(source.examples) for name, source in data.evaluation().items()} == {"leg_counting": 3, "gcd": 3}


def test_gold_answers_score_one(codec):
    from reasoning_gym import get_score_answer_fn

    data = ReasoningGym(tasks={"gcd": Task(), "spell_backward": Task()}, size=5)
    data.setup(codec)
    for source in data.train().values():
        for example in source.examples:
            score = get_score_answer_fn(example.fields["dataset"])
            assert score(example.fields["answer"], example.fields["entry"]) == 1.0


def test_held_out_entries_are_others(codec):
    data = ReasoningGym(tasks={"leg_counting": Task()}, size=100, eval_size=100)
    data.setup(codec)
    train, held_out = ({e.prompt for e in s["leg_counting"].examples} for s in (data.train(), data.evaluation()))
    assert not train & held_out


def test_prompts_as_text_and_as_chat(codec):
    plain, chat = ReasoningGym(tasks={"gcd": Task()}), ReasoningGym(tasks={"gcd": Task()}, chat=True, system="think")
    plain.setup(codec)
    chat.setup(codec)
    text = plain.train()["gcd"].examples[0].prompt
    assert text.endswith(f"\n\n{ANSWER_HINT}\n")
    assert chat.train()["gcd"].examples[0].prompt == (
        {"role": "system", "content": "think"},
        {"role": "user", "content": text.removesuffix("\n")},
    )


def test_level_and_config_set_the_difficulty(codec):
    tasks = {"leg_counting": Task(level=0, config={"max_animals": 2, "min_animals": 2})}
    data = ReasoningGym(tasks=tasks, size=20)
    data.setup(codec)
    assert {e.fields["entry"]["metadata"]["num_animals"] for e in data.train()["leg_counting"].examples} == {2}


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ({"leg_count": Task()}, "no task 'leg_count'; did you mean leg_counting"),
        ({"leg_counting": Task(config={"min_animal": 3})}, "its parameters are max_animals"),
        ({"leg_counting": Task(config={"min_animals": 9, "max_animals": 3})}, "task 'leg_counting'"),
        ({"acre": Task(level=1)}, "has no curriculum"),
    ],
)
def test_wrong_tasks_are_refused(codec, tasks, message):
    with pytest.raises(ValueError, match=message):
        ReasoningGym(tasks=tasks).setup(codec)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Task(weight=0), "weight must be > 0"),
        (lambda: Task(level=-1), "level must be >= 0"),
        (lambda: Task(config={"seed": 1}), "'seed'"),
        (lambda: ReasoningGym(tasks={}), "at least one task"),
        (lambda: ReasoningGym(tasks={"gcd": Task()}, size=0), "size must be >= 1"),
        (lambda: ReasoningGym(tasks={"gcd": Task()}, system="think"), "set chat: true"),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
