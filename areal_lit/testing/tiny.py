"""A model small enough for tests, and a tokenizer as awkward as real ones.

Decoding and encoding again changes ids: merges glue characters that were drawn one by one (``"1", "1"`` becomes
``"11"``) and capitals are folded. The chat template drops the thinking of earlier turns, so it is not append-only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_lit.types import ModelSpec

SPECIAL = ("<pad>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
THINK = ("<think>", "</think>")
MERGES = ("11", "00", "10", "th", "he", "in", "an", "er")
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz+-*/=.,?:\n ()"

TINY_CONFIG: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
"""A two-layer Qwen3 of 20,704 parameters; its wide initialisation makes contexts matter to log-probs."""

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{%- set content = message['content'] -%}
{%- if message['role'] == 'assistant' and not loop.last -%}
{%- set content = content.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
<|{{ message['role'] }}|>{{ content }}<|end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}
{%- endif -%}
"""


def tiny_tokenizer() -> Any:
    """A fast tokenizer of 64 tokens with pad (0) and end (1) apart; unknown characters become ``?``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL, *THINK, *CHARACTERS, *MERGES]
    model = models.BPE(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[(pair[0], pair[1]) for pair in MERGES],
        unk_token="?",
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Lowercase()
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in THINK])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[1],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def tiny_spec(directory: str | Path, **config: Any) -> ModelSpec:
    """Saves the tokenizer into ``directory`` and returns a spec with random weights beside it.

    Args:
        config: overrides of ``TINY_CONFIG``; a new ``model_type`` brings its own architecture.
    """
    tiny_tokenizer().save_pretrained(str(directory))
    return ModelSpec(path=str(directory), config={**TINY_CONFIG, **config})
