"""A byte-level tokenizer as most models have one: a character may take several tokens, a pair of them one."""

from __future__ import annotations

from pathlib import Path

from areal_lit.text import TextCodec
from areal_lit.types import ModelSpec


def byte_level_codec(directory: Path) -> TextCodec:
    """A codec whose tokenizer lies in the directory; ``<end>`` is its special token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = ["<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    line_break, space = "\u010a", "\u0120"  # how byte-level vocabularies write them
    merges = [("1", "+"), ("o", "n"), (".", line_break), (line_break, line_break), (line_break, "A"), (space, "o")]
    vocabulary = {piece: index for index, piece in enumerate([*pieces, *map("".join, merges)])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>", clean_up_tokenization_spaces=False)
    tokenizer.save_pretrained(directory)
    return TextCodec(ModelSpec(path=str(directory)))
