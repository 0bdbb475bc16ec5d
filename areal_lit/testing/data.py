"""check_data: the conformance suite of data modules."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Callable, Mapping

from areal_lit.contracts import DataModule, Preview, Reward, RowSampler, Source, Workflow
from areal_lit.testing.component import check_component, check_state, require
from areal_lit.text import TextCodec
from areal_lit.types import Example, Sampling

SAMPLED = 40
"""Rows that a sampler is asked for."""

REWARDS = ((0.0, 1.0), (), (1.0, 1.0), (0.0, 0.0), (1.0, 0.0, -2.5))
"""Outcomes that it is told in turn."""


def check_data(make: Callable[[], DataModule], codec: TextCodec, *, num_examples: int = 20) -> None:
    """Raise AssertionError unless the data module keeps the contract that order, resume and rewards rely on.

    ::

        def test_data(tmp_path):
            check_data(lambda: MyData(files=["x.jsonl"]), TextCodec(tiny_spec(tmp_path)))

    Args:
        make: constructs the module; called several times, each must give the same examples.
        codec: what prompts are encoded with.
        num_examples: how many of each source are looked at, spread over it.
    """
    first, second = make(), check_component(make, "data")
    needs_reward = bool(first.unrewarded())
    for name, preview in first.preview().items():
        require(isinstance(preview, Preview), f"preview()[{name!r}] must be a Preview, got {type(preview).__name__}")
        for row, example in enumerate(preview.examples[:num_examples]):
            _check_example(example, codec, f"preview()[{name!r}].examples[{row}]")
    first.setup(codec)
    second.setup(codec)
    for method in ("train", "evaluation"):
        sources: Mapping[str, Source] = getattr(first, method)()
        others: Mapping[str, Source] = getattr(second, method)()
        require(
            isinstance(sources, Mapping), f"{method}() must return a mapping of sources, got {type(sources).__name__}"
        )
        require(
            list(sources) == list(others),
            f"{method}() must name the same sources in every instance, got {list(sources)} and {list(others)}",
        )
        for name, source in sources.items():
            where = f"{method}()[{name!r}]"
            _check_source(source, where, name)
            require(
                source.reward is not None or needs_reward,
                f"{where} brings no reward, but unrewarded() promises that all do; name what needs the trainer's",
            )
            rows = _spread(len(source.examples), num_examples)
            for row in rows:
                _check_example(source.examples[row], codec, f"{where}.examples[{row}]")
            _check_access(source, others[name], where, rows)
            sampler, resumed = source.sampler, others[name].sampler
            if sampler is not None and resumed is not None:
                require(sampler is not getattr(first, method)()[name].sampler, f"{where}.sampler must be fresh")
                _check_sampler(sampler, resumed, len(source.examples), where)
    names = first.evaluation_names()
    require(
        names is None or list(names) == list(first.evaluation()),
        f"evaluation_names() must be the keys of evaluation(), got {names} and {list(first.evaluation())}",
    )
    require(first.train() or first.evaluation(), "train() and evaluation() are both empty: there is nothing to run on")
    check_state(first, make)


def _check_source(source: Source, where: str, name: str) -> None:
    require(isinstance(name, str) and name, f"{where}: a source's name must be a non-empty string")
    require(isinstance(source, Source), f"{where} must be a Source, got {type(source).__name__}")
    require(
        math.isfinite(source.weight) and source.weight > 0,
        f"{where}.weight must be > 0 and finite, got {source.weight}; leave the source out instead",
    )
    require(len(source.examples) > 0, f"{where} is empty; raise ValueError in setup instead of waiting for ever")
    optional = (("reward", Reward), ("workflow", Workflow), ("sampling", Sampling), ("sampler", RowSampler))
    for attribute, base in optional:
        value = getattr(source, attribute)
        require(
            value is None or isinstance(value, base),
            f"{where}.{attribute} must be a {base.__name__} or None, got {value!r:.60}",
        )


def _check_access(source: Source, other: Source, where: str, rows: list[int]) -> None:
    """The same index gives the same example: again, in another order, and in another instance."""
    length = len(source.examples)
    require(
        length == len(other.examples),
        f"{where} has {length} examples in one instance, {len(other.examples)} in another",
    )
    seen = {row: source.examples[row] for row in rows}
    for row in reversed(rows):
        require(
            _same(source.examples[row], seen[row]),
            f"{where}.examples[{row}] changed between two accesses; it may depend on the index only",
        )
        require(
            _same(other.examples[row], seen[row]),
            f"{where}.examples[{row}] differs between two instances; draw from a seed and the index only",
        )
    try:
        source.examples[length]
    except IndexError:
        return
    raise AssertionError(f"{where}.examples[{length}] must raise IndexError, as there are {length} examples")


def _check_sampler(sampler: RowSampler, resumed: RowSampler, num_rows: int, where: str) -> None:
    """Rows that exist, and the same again from a saved state."""
    for seed in range(SAMPLED):
        row = sampler.choose(seed)
        require(row is None or 0 <= row < num_rows, f"{where}.sampler chose row {row} of {num_rows}")
        sampler.observe(seed % num_rows if row is None else row, REWARDS[seed % len(REWARDS)])
    resumed.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    chosen, again = ([each.choose(seed) for seed in range(SAMPLED)] for each in (sampler, resumed))
    require(chosen == again, f"{where}.sampler chooses {again} after a resume, {chosen} without one")


def _same(one: Example, other: Example) -> bool:
    if one.prompt != other.prompt:
        return False
    try:
        if dict(one.fields) == dict(other.fields):
            return True
    except ValueError:
        pass  # arrays have no single truth value
    return pickle.dumps(dict(one.fields)) == pickle.dumps(dict(other.fields))


def _check_example(example: Example, codec: TextCodec, where: str) -> None:
    require(isinstance(example, Example), f"{where} must be an Example, got {type(example).__name__}")
    if isinstance(example.prompt, str):
        require(example.prompt, f"{where}: the prompt is empty text")
    else:
        require(
            isinstance(example.prompt, tuple) and example.prompt,
            f"{where}: a chat prompt is a non-empty tuple of messages",
        )
        for message in example.prompt:
            require(
                isinstance(message, Mapping) and {"role", "content"} <= message.keys(),
                f"{where}: a chat message has role and content, got {message!r:.60}",
            )
    require(
        len(codec.encode_prompt(example)) > 0, f"{where}: the prompt encodes to no tokens, got {example.prompt!r:.60}"
    )
    require(
        isinstance(example.fields, Mapping) and all(isinstance(name, str) for name in example.fields),
        f"{where}.fields must be a mapping with string keys",
    )
    try:
        pickle.loads(pickle.dumps(example))
    except Exception as error:  # whatever a foreign field raises here is the finding, and is chained
        raise AssertionError(f"{where} does not pickle, so it cannot reach the reward pool: {error}") from error


def _spread(length: int, num: int) -> list[int]:
    """At most ``num`` distinct indices over 0..length-1, first and last included."""
    if length <= num:
        return list(range(length))
    return sorted({round(index * (length - 1) / (num - 1)) for index in range(num)})
