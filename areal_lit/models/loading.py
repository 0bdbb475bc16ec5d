"""Finding and loading Hugging Face models and tokenizers, for strategies and engines alike.

transformers and torch are imported inside the functions: the controller needs the tokenizer only.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from areal_lit.types import ModelSpec

LATE_IMPORTS = (
    "areal_lit.models.hugging_face", "transformers.models.auto.tokenization_auto",
    "transformers.models.auto.modeling_auto", "transformers.modeling_layers", "transformers.generation.utils",
)  # fmt: skip
"""What the functions below import, for the ``preload`` of components that call them."""

_LOADING = threading.Lock()
"""transformers loads through what all threads share: a default dtype, patched initialisers, the random state."""

SCALAR_HEAD_FILE = "scalar_head.safetensors"
"""Beside an exported model: ``weight`` and ``bias`` of its value or score head, float32."""

SCALAR_HEAD_PREFIX = "score."
"""Of the names under which a strategy's ``weights`` have those of such a head."""


def resolve(path: str) -> str:
    """A directory, a ``.gguf`` file or a hub id for a ``ModelSpec.path``.

    ``package:NAME/FILE`` is a file in an installed package, found without importing it. Raises ValueError for a
    package or file that does not exist.
    """
    if not path.startswith("package:"):
        if path.startswith((".", "/", "~")):
            full = Path(path).expanduser()
            if not full.exists():
                raise ValueError(f"model path {path!r} does not exist; give a directory, a .gguf file or a hub id")
            return str(full)
        return path
    package, _, rest = path.removeprefix("package:").partition("/")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"model path {path!r} names the package {package!r}, which is not installed; pip install it, or give a "
            "directory or hub id"
        )
    full = Path(next(iter(found.submodule_search_locations))) / rest
    if not full.exists():
        raise ValueError(f"model path {path!r}: package {package!r} has no file {rest!r}")
    return str(full)


@contextmanager
def without_progress_bars() -> Iterator[None]:
    """transformers loads and saves without drawing bars, which would tear the run's own display."""
    import transformers

    logging = transformers.utils.logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _source(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """First argument and keywords of ``from_pretrained`` for a spec."""
    path = resolve(spec.path)
    keywords: dict[str, Any] = {"trust_remote_code": spec.trust_remote_code}
    if path.endswith(".gguf"):
        keywords["gguf_file"] = Path(path).name
        path = str(Path(path).parent)
    return path, keywords


@contextmanager
def _named(spec: ModelSpec) -> Iterator[None]:
    """What transformers says of a model that it cannot load names the model and the recipe's key."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"the model {spec.path!r} needs Python code that it brings with it, which would run with your rights; read "
            "it, and if you trust it set trust_remote_code: true beside the model's path "
            "(policy.model.trust_remote_code)"
        ) from error
    except OSError as error:
        if error.errno is not None:  # a disk or a file, which is named
            raise
        raise OSError(
            f"the model {spec.path!r} cannot be loaded: {error}\nIts path in the recipe (policy.model.path, or that of "
            "another role) is a directory that save_pretrained wrote, or the id of a model that the hub has"
        ) from error


def load_tokenizer(spec: ModelSpec) -> Any:
    """The fast tokenizer of a spec."""
    import transformers

    path, keywords = _source(spec)
    with _named(spec):
        return transformers.AutoTokenizer.from_pretrained(path, **keywords)


def load_config(spec: ModelSpec) -> Any:
    """The Hugging Face configuration of a spec, from its checkpoint or its bare ``config``."""
    import transformers

    if spec.config is not None:
        values = dict(spec.config)
        if "model_type" not in values:
            raise ValueError('model.config needs "model_type" (for example "qwen3") to know the architecture')
        return transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    path, keywords = _source(spec)
    with _named(spec):
        return transformers.AutoConfig.from_pretrained(path, **keywords)


def load_causal_lm(spec: ModelSpec, *, dtype: str | None = None, attn_implementation: str | None = None) -> Any:
    """A causal language model in eval mode on the CPU. Threads that load at once take turns.

    Args:
        dtype: ``float32`` or ``bfloat16``; the spec's by default.
        attn_implementation: a name registered with transformers; its own default otherwise.
    """
    with _LOADING:
        return _loaded(spec, dtype, attn_implementation)


def _loaded(spec: ModelSpec, dtype: str | None, attn_implementation: str | None) -> Any:
    import torch
    import transformers

    torch_dtype = getattr(torch, dtype or spec.dtype)
    attention = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
    if spec.config is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.init_seed)
            return transformers.AutoModelForCausalLM.from_config(
                load_config(spec), dtype=torch_dtype, trust_remote_code=spec.trust_remote_code, **attention
            ).eval()
    path, keywords = _source(spec)
    with without_progress_bars(), _named(spec):
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch_dtype, **keywords, **attention
        ).eval()
    if "gguf_file" in keywords:
        # dequantised weights are plain; save_pretrained refuses while the configuration says otherwise
        model.config.quantization_config = None
        del model.config.quantization_config
        model.hf_quantizer = None
        model.is_quantized = False
    return model


def end_token_ids(spec: ModelSpec, tokenizer: Any) -> tuple[int, ...]:
    """Tokens that end a completion: the tokenizer's end token and those of the generation configuration."""
    import transformers

    ids = [] if tokenizer.eos_token_id is None else [int(tokenizer.eos_token_id)]
    path, keywords = _source(spec)
    if spec.config is None and "gguf_file" not in keywords:
        try:
            listed = transformers.GenerationConfig.from_pretrained(path).eos_token_id
        except OSError:  # the checkpoint has no generation configuration
            listed = None
        ids += [listed] if isinstance(listed, int) else list(listed or [])
    if not ids:
        raise ValueError(f"the tokenizer of {spec.path!r} has no end token; completions could only end by length")
    return tuple(dict.fromkeys(ids))
