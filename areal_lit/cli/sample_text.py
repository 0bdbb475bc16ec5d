"""A sample as text: numbers, prompt and completion, tokens coloured by version or log-prob; or why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp
from typing import Literal, get_args

from rich.text import Text

from areal_lit.run_records import Head, Pieces, RunRecords, Sample, SampleIndex
from areal_lit.run_records.query import SYNTAX

Colouring = Literal["none", "version", "logprob"]
COLOURINGS: tuple[Colouring, ...] = get_args(Colouring)
VERSION_COLOURS = ("green", "yellow", "magenta", "cyan", "red", "blue")
"""Of a token by how many versions it is older than the sample's newest; the last for all beyond."""
PROBABILITIES = (
    (0.9, "default", "above 90%"),
    (0.5, "green", "above 50%"),
    (0.1, "yellow", "above 10%"),
    (0.01, "dark_orange", "above 1%"),
    (0.0, "red", "rarer"),
)
"""Lower bound, colour and name of each band."""


def number(value: float | None) -> str:
    """A reward or a part of one; ``-`` for none."""
    return "-" if value is None else f"{value:.4g}"


def headline(head: Head) -> str:
    """Everything but the texts, on one line."""
    column = f" ({head.column})" if head.column else ""
    parts = [f"step {head.step}", f"{head.source or 'prompt'} {head.prompt_id} sample {head.sample}{column}"]
    parts += [f"reward {number(head.reward)}", f"{head.num_generated} tokens", f"stop: {head.stop_reason or '?'}"]
    if head.versions:
        first, last = head.versions[0], head.versions[-1]
        parts.append(f"version {first}" if first == last else f"versions {first} to {last}")
        parts.append(f"staleness {head.staleness}")
    return ", ".join(parts)


def rewards(sample: Sample) -> str:
    """The reward's parts and what turns and steps earned, or why there is none; empty where it has none."""
    if sample.unscored:
        return f"unscored: {sample.unscored}"
    parts = [f"{name} {number(value)}" for name, value in sample.parts.items()]
    for name, values in (("turns", sample.turn_rewards), ("steps", sample.step_scores)):
        parts += [f"{name} {' '.join(map(number, values))}"] if values else []
    return ", ".join(parts)


def completion(sample: Sample, colouring: Colouring, pieces: Pieces | None) -> Text:
    """The completion; in colours with a legend, or with a line that says why there are none."""
    whole = visible(sample.completion)
    if colouring == "none":
        return Text(whole)
    if sample.tokens is None:
        return Text.assemble((_NO_TOKENS, "italic"), "\n", whole)
    if pieces is None:
        return Text.assemble((_NO_TOKENIZER, "italic"), "\n", whole)
    text = Text()
    styles = _version_styles(sample) if colouring == "version" else _logprob_styles(sample)
    for piece, style in zip(pieces.of(sample.tokens.ids), styles, strict=True):
        text.append(visible(piece), style)
    legend = _version_legend(sample) if colouring == "version" else _logprob_legend()
    return Text("\n").join([Text.assemble(*legend), text])


_NO_TOKENS = "(no single tokens are kept of this sample: it is longer than the samples logger's max_tokens)"
_NO_TOKENIZER = "(the run's tokenizer is not on this machine)"


def _version_styles(sample: Sample) -> Iterator[str]:
    assert sample.tokens is not None
    each = sample.tokens.version_of_each
    newest = max(each, default=0)
    return (_version_colour(newest - version) for version in each)


def _version_colour(age: int) -> str:
    return VERSION_COLOURS[min(age, len(VERSION_COLOURS) - 1)]


def _version_legend(sample: Sample) -> list[tuple[str, str]]:
    assert sample.tokens is not None
    versions = sorted({version for version, _ in sample.tokens.versions}, reverse=True)
    return [("version", "italic"), *((f" {version}", _version_colour(versions[0] - version)) for version in versions)]


def _logprob_styles(sample: Sample) -> Iterator[str]:
    assert sample.tokens is not None
    for logprob in sample.tokens.logprobs:
        yield next((colour for least, colour, _ in PROBABILITIES if logprob is not None and exp(logprob) >= least), "")


def _logprob_legend() -> list[tuple[str, str]]:
    return [("probability", "italic"), *((f" {name}", colour) for _, colour, name in PROBABILITIES)]


def describe(sample: Sample, colouring: Colouring = "none", pieces: Pieces | None = None) -> Text:
    """Everything about a sample. What would move the cursor or change colours of a terminal is spelt out."""
    told = rewards(sample)
    text = Text.assemble((visible(headline(sample)), "bold"), f"\n{visible(told)}" if told else "")
    text.append_text(Text.assemble("\n\n", ("prompt", "bold underline"), "\n", visible(sample.prompt_text)))
    text.append_text(Text.assemble("\n\n", ("completion", "bold underline"), "\n"))
    return text.append_text(completion(sample, colouring, pieces))


def visible(text: str) -> str:
    """The text with control characters as their pictures: a model may write what a terminal obeys."""
    return text.translate(_CONTROL_PICTURES)


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"}
_CONTROL_PICTURES |= {0x7F: 0x2421, **dict.fromkeys(range(0x80, 0xA0), 0xFFFD)}


def why_none(records: RunRecords, index: SampleIndex) -> str:
    """Why there is nothing to show, and what to do."""
    if index.entries:
        return f"none of {len(index.entries)} samples matches; a query is written like this: {SYNTAX}"
    if index.num_unreadable:
        return f"{index.path} holds no sample, and {index.num_unreadable} lines of something else; move it away"
    if index.path.exists():
        return f"{index.path} holds no sample yet; a run writes them at the end of each step"
    return (
        f"{records.path} has no samples.jsonl; the logger `samples` writes it, which a recipe without `loggers` has by "
        "itself: add it to the recipe's `loggers`"
    )
