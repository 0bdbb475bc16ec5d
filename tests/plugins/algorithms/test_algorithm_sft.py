"""SFT: what is encoded, what is trained, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from algorithm_batches import make_batch, put

from areal_lit.testing.algorithm import check_algorithm
from areal_lit.testing.tiny import tiny_spec
from areal_lit.text import TextCodec
from areal_lit.token_batch import TokenOutputs, weighted_sum
from areal_lit.types import Example, Prompt
from areal_lit_algorithms.sft import SFT

MARKED_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
)


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    return TextCodec(tiny_spec(tmp_path))


def row(prompt: Any, **fields: Any) -> Prompt:
    return Prompt(prompt_id=0, source="a", row=3, epoch=0, example=Example(prompt=prompt, fields=fields))


def test_conformance() -> None:
    check_algorithm(SFT())
    check_algorithm(SFT(aggregation="sequence_mean"))
    check_algorithm(SFT(aggregation="constant", max_length=16))


def test_loss_is_the_mean_cross_entropy() -> None:
    algorithm = SFT()
    batch = algorithm.weigh(make_batch(algorithm, [1, 2], [0.0, 0.0], [[1, 0], [1, 1]]))
    logprob_T = put(batch, "logprob", [[-1.0, -50.0], [-2.0, -3.0]])["logprob"].requires_grad_()
    loss = algorithm.objectives()["policy"](TokenOutputs(logprob_T=logprob_T), batch)
    total = weighted_sum(loss, batch)
    assert total.item() == pytest.approx(2.0)
    assert [m.value for m in loss.metrics] == pytest.approx([2.0])
    (gradient,) = torch.autograd.grad(total, logprob_T)
    assert gradient.tolist() == pytest.approx([0, -1 / 3, 0, 0, -1 / 3, -1 / 3])


def test_prompt_and_completion(codec: TextCodec) -> None:
    (trajectory,) = SFT().encode(row("1+1=", completion="2"), codec)
    prompt, completion = codec.encode("1+1=").tolist(), codec.encode("2").tolist()
    assert trajectory.token_ids.tolist() == [*prompt, *completion, codec.end_token_ids[0]]
    assert trajectory.loss_mask.tolist() == [False] * len(prompt) + [True] * (len(completion) + 1)
    assert trajectory.versions.tolist() == [-1] * len(trajectory.token_ids)
    assert trajectory.reward is None


def test_a_chat_prompt_with_a_completion_takes_the_generation_prompt(codec: TextCodec) -> None:
    messages = ({"role": "user", "content": "1+1"},)
    (trajectory,) = SFT(completion_field="answer").encode(row(messages, answer="2"), codec)
    start = codec.encode_messages(messages)
    assert trajectory.token_ids[: len(start)].tolist() == start.tolist()
    assert trajectory.num_generated == len(trajectory.token_ids) - len(start) == 2


def test_without_a_prompt_the_first_token_has_no_predecessor(codec: TextCodec) -> None:
    (trajectory,) = SFT().encode(row("", completion="12"), codec)
    assert trajectory.loss_mask.tolist() == [False, *[True] * (len(trajectory.token_ids) - 1)]


def test_assistant_turns_of_a_conversation_are_trained(codec: TextCodec) -> None:
    codec.tokenizer.chat_template = MARKED_TEMPLATE
    messages = tuple(
        {"role": role, "content": content}
        for role, content in (("user", "3"), ("assistant", "4"), ("user", "5"), ("assistant", "6"))
    )
    (trajectory,) = SFT().encode(row(messages), codec)
    trained = trajectory.token_ids[trajectory.loss_mask].tolist()
    end = codec.end_token_ids[0]
    assert trained == [*codec.encode("4").tolist(), end, *codec.encode("6").tolist(), end]


def test_a_template_without_markers_is_refused(codec: TextCodec) -> None:
    messages = ({"role": "user", "content": "3"}, {"role": "assistant", "content": "4"})
    with pytest.raises(ValueError, match=r"no \{% generation %\} markers"):
        SFT().encode(row(messages), codec)


def test_rows_with_nothing_to_train_are_named(codec: TextCodec) -> None:
    with pytest.raises(ValueError, match="row 3 of a needs a string in field 'completion', got NoneType"):
        SFT().encode(row("1+1="), codec)
    codec.tokenizer.chat_template = MARKED_TEMPLATE
    with pytest.raises(ValueError, match="row 3 of a has no assistant turn"):
        SFT().encode(row(({"role": "user", "content": "3"},)), codec)


def test_too_long_is_as_the_recipe_says(codec: TextCodec) -> None:
    long = row("1+2=", completion="345")
    full = len(SFT().encode(long, codec)[0].token_ids)
    with pytest.raises(ValueError, match=f"row 3 of a has {full} tokens, more than max_length {full - 1}"):
        SFT(max_length=full - 1).encode(long, codec)
    assert SFT(max_length=full - 1, too_long="drop").encode(long, codec) == []
    (cut,) = SFT(max_length=full - 1, too_long="truncate").encode(long, codec)
    assert (len(cut.token_ids), cut.stop_reason) == (full - 1, "length")
    assert SFT(max_length=2, too_long="truncate").encode(long, codec) == []
    assert SFT(max_length=full).encode(long, codec)[0].stop_reason == "stop"
