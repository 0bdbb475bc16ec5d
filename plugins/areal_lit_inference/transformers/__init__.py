"""``transformers``: the embedded engine, plain Hugging Face models with continuous batching."""

from areal_lit_inference.transformers.backend import Transformers

__all__ = ["Transformers"]
