"""Published: what data sets with a training and a test split share, from local files or from the hub."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from areal_lit.contracts import Source
from areal_lit.text import TextCodec
from areal_lit_data.huggingface import INSTALL
from areal_lit_data.rows import RowData

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer


class Published(RowData):
    """Base of data sets that are published as train and test.

    Args:
        directory: holds train.jsonl and test.jsonl in the original format; None loads from the hub.
        hub_id: dataset on the Hugging Face hub (needs the extra ``datasets``).
    """

    name: ClassVar[str]
    """Of both sources, in metrics."""

    def __init__(self, *, directory: str | None, hub_id: str, **rows: Any) -> None:
        super().__init__(**rows)
        self.directory = directory
        self.hub_id = hub_id

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if self.directory is None and importlib.util.find_spec("datasets") is None:
            yield f"{INSTALL}, or give a directory with train.jsonl and test.jsonl"
        if self.directory is not None and not Path(self.directory).expanduser().is_dir():
            yield f"directory {self.directory!r} does not exist; it must hold train.jsonl and test.jsonl"
        yield from super().rules(trainer)

    def evaluation_names(self) -> Sequence[str]:
        return [self.name]

    def setup(self, codec: TextCodec) -> None:
        self._train = {self.name: self._load("train", codec, self.max_examples)}
        self._evaluation = {self.name: self._load("test", codec, self.max_eval_examples)}

    @abstractmethod
    def _load(self, split: str, codec: TextCodec, limit: int | None) -> Source:
        """The split named ``train`` or ``test``, at most ``limit`` rows of it."""
