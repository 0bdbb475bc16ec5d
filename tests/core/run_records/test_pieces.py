"""Single tokens as text: together they are the whole, however characters are split."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from areal_lit.run_records import Pieces, RunRecords, load_pieces


@pytest.fixture
def tokenizer() -> Tokenizer:
    """A token per byte."""
    vocabulary = {byte: index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


@pytest.mark.parametrize("text", ["", "plain words, many of them", "Grüße 世界 🙂!", "🙂🙂🙂🙂🙂🙂", "  two  spaces "])
def test_pieces_join_to_the_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).ids
    pieces = Pieces(tokenizer).of(ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


def test_a_character_belongs_to_its_last_token_and_half_of_one_shows(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("aü").ids
    assert Pieces(tokenizer).of(ids) == ["a", "", "ü"]
    assert Pieces(tokenizer).of(ids[:2]) == ["a", "\ufffd"]


def test_the_tokenizer_is_that_of_the_run(tmp_path: Path) -> None:
    config = {"policy": {"model": {"path": "package:areal_lit_recipes/quickstart_model"}}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    pieces = load_pieces(RunRecords(tmp_path))
    assert pieces is not None
    assert pieces.of([5, 12]) == ["1", "8"]
    config["policy"]["model"]["path"] = "someone/not-downloaded"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert load_pieces(RunRecords(tmp_path)) is None
