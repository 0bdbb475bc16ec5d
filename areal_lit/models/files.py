"""What the files of a model say, read in milliseconds: neither torch nor transformers is imported, nothing is fetched.

For validation. A fact that would take more (a ``.gguf`` file, a hub id that is not in the cache) is None.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from areal_lit.models.loading import resolve
from areal_lit.types import ModelSpec

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?(?<!\.gguf)|[\w.-]+/[\w.-]+/[\w.-]+\.gguf")
_WEIGHTS = ("*.safetensors", "*.bin")
_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


class ModelFiles:
    """The files behind a spec, wherever they lie.

    Args:
        spec: whose path may be wrong; ``problem`` says so.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec

    @cached_property
    def directory(self) -> Path | None:
        """The model's directory; for a hub id that of the cache, None where it is not there."""
        try:
            path = Path(resolve(self.spec.path))
        except ValueError:
            return None
        if path.is_dir():
            return path
        if path.exists() or not _HUB_ID.fullmatch(self.spec.path):
            return None
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache("/".join(self.spec.path.split("/")[:2]), "config.json")
        return Path(found).parent if isinstance(found, str) else None

    def problem(self) -> str:
        """Why nothing can be loaded from the path, and the way out; empty when nothing is known against it."""
        try:
            path = Path(resolve(self.spec.path))
        except ValueError as error:
            return str(error)
        if path.is_dir():
            return self._problem_of_directory(path)
        if path.exists():
            is_model = path.suffix == ".gguf"
            return "" if is_model else f"{self.spec.path!r} is a file; give its directory, a .gguf file or a hub id"
        if not _HUB_ID.fullmatch(self.spec.path):
            return f"{self.spec.path!r} is no directory here and no hub id (owner/name); correct the path"
        if self.directory is None and _is_offline():
            return (
                f"{self.spec.path!r} is not in the cache of the Hugging Face hub, and HF_HUB_OFFLINE forbids to fetch "
                f"it; unset that, run `hf download {self.spec.path}` where there is a network, or give a directory"
            )
        return ""

    def _problem_of_directory(self, path: Path) -> str:
        names = sorted(entry.name for entry in path.iterdir())
        what = f"directory {self.spec.path!r}"
        if "adapter_config.json" in names and "config.json" not in names:
            return f"{what} holds an adapter, not a model; merge it into its base model and give that"
        if not {"config.json", "tokenizer_config.json", "tokenizer.json"} & set(names):
            inner = sorted(found.parent for found in path.glob("*/config.json"))
            hint = f"did you mean {inner[0]}?" if inner else "give the directory that save_pretrained wrote"
            return f"{what} is empty; {hint}" if not names else f"{what} holds no config.json; {hint}"
        if self.spec.config is None and "config.json" in names and not any(map(any, map(path.glob, _WEIGHTS))):
            return (
                f"{what} holds no weights ({', '.join(_WEIGHTS)}); give the whole model, or its configuration under "
                "model.config for random ones"
            )
        return ""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The Hugging Face configuration, that of the text model where it has several; empty where it is not known."""
        found = self.spec.config if self.spec.config is not None else self._json("config.json")
        inner = found.get("text_config")
        return inner if isinstance(inner, Mapping) else found

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding."""
        size = self.config.get("vocab_size")
        return size if isinstance(size, int) else None

    @cached_property
    def tokenizer(self) -> Any:
        """A ``tokenizers.Tokenizer``, without chat template and special handling; None where it is not known."""
        file = self.directory / "tokenizer.json" if self.directory else None
        if file is None or not file.is_file():
            return None
        return _read_tokenizer(file, file.stat().st_mtime_ns)

    @property
    def has_chat_template(self) -> bool | None:
        """Whether chat messages can be encoded."""
        if self.directory is None or not (self.directory / "tokenizer_config.json").is_file():
            return None
        is_beside = any((self.directory / name).exists() for name in _TEMPLATE_FILES)
        return is_beside or bool(self._json("tokenizer_config.json").get("chat_template"))

    def _json(self, name: str) -> Mapping[str, Any]:
        if self.directory is None:
            return {}
        try:
            value = json.loads((self.directory / name).read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


@lru_cache(maxsize=4)
def _read_tokenizer(file: Path, mtime_ns: int) -> Any:
    """Kept while the file stays as it is: several rules ask for it, and a large one takes a second to read."""
    from tokenizers import Tokenizer

    # tokenizers raises plain Exception for a file it cannot read; loading the model will tell in full
    try:
        return Tokenizer.from_file(str(file))
    except Exception:  # noqa: BLE001
        return None


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)
