"""The text of single tokens, with the tokenizer that a run used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from areal_lit.run_records.run import RunRecords

WINDOW = 8
"""Tokens that are decoded together: what a token's text is may depend on those just before it."""


class Pieces:
    """Splits generated tokens into the text that each adds; characters of several tokens belong to their last one.

    Args:
        tokenizer: of the `tokenizers` package.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def of(self, ids: Sequence[int]) -> list[str]:
        """One text per token; all together are the decoded text."""
        return list(self._of(ids))

    def _of(self, ids: Sequence[int]) -> Iterator[str]:
        start, shown = 0, ""
        for end in range(1, len(ids) + 1):
            text = self._tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)
            if text.endswith("\ufffd") and end < len(ids):
                yield ""  # half a character
                continue
            yield text[len(shown) :]
            shown = text
            if end - start >= WINDOW:
                start = end - WINDOW // 2
                shown = self._tokenizer.decode(list(ids[start:end]), skip_special_tokens=False)


def load_pieces(run: RunRecords) -> Pieces | None:
    """With the tokenizer of the newest checkpoint's export, or of the model that the run started from.

    None where neither is on this machine: nothing is downloaded.
    """
    for directory in _places(run):
        if (file := directory / "tokenizer.json").is_file():
            from tokenizers import Tokenizer

            return Pieces(Tokenizer.from_file(str(file)))
    return None


def _places(run: RunRecords) -> Iterator[Path]:
    from areal_lit.models import resolve

    yield from sorted(run.path.glob("checkpoints/step-*/hf"), reverse=True)
    policy = run.config.get("policy")
    model = policy.get("model") if isinstance(policy, dict) else None
    path = model.get("path") if isinstance(model, dict) else None
    if isinstance(path, str):
        try:
            yield Path(resolve(path))
        except ValueError:  # the model is not here any more
            return
