"""Models and tokenizers of Hugging Face: finding and loading them, and what their files say without loading them."""

from areal_lit.models.files import ModelFiles
from areal_lit.models.loading import (
    LATE_IMPORTS,
    SCALAR_HEAD_FILE,
    SCALAR_HEAD_PREFIX,
    end_token_ids,
    load_causal_lm,
    load_config,
    load_tokenizer,
    resolve,
    without_progress_bars,
)
from areal_lit.models.weights import check_finite

__all__ = [
    "LATE_IMPORTS", "SCALAR_HEAD_FILE", "SCALAR_HEAD_PREFIX", "ModelFiles", "check_finite", "end_token_ids",
    "load_causal_lm", "load_config", "load_tokenizer", "resolve", "without_progress_bars",
]  # fmt: skip
