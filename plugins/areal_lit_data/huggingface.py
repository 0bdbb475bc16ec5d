"""Datasets of the Hugging Face hub, or local files through its builders (extra ``datasets``)."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from areal_lit.contracts import Source
from areal_lit.text import TextCodec
from areal_lit_data.rows import RowData

if TYPE_CHECKING:
    from areal_lit.trainer import Trainer

INSTALL = "the package datasets is not installed; run: pip install 'areal-lit[datasets]'"


class HuggingFace(RowData):
    """Rows of a Hugging Face dataset, with columns named in the recipe.

    Args:
        path: hub id, or a builder (``json``, ``parquet``, ``csv``) together with data_files.
        split: training split, slices as in ``train[:1000]``; null for evaluation only.
        eval_splits: split per evaluation set.
        subset: configuration of the dataset (``main``).
        revision: branch, tag or commit on the hub.
        data_files: files per split, for builders.
        name: of the training source, in metrics.
    """

    def __init__(
        self,
        *,
        path: str,
        split: str | None = "train",
        eval_splits: Mapping[str, str] | None = None,
        subset: str | None = None,
        revision: str | None = None,
        data_files: Mapping[str, Sequence[str]] | None = None,
        name: str = "huggingface",
        **rows: Any,
    ) -> None:
        super().__init__(**rows)
        if split is None and not eval_splits:
            raise ValueError("split is null and there are no eval_splits: nothing is read; name a split, such as train")
        if empty := [f"data_files.{name}" for name, patterns in (data_files or {}).items() if not patterns]:
            raise ValueError(f"{', '.join(empty)} must name at least one file, got []; leave the split out instead")
        self.path = path
        self.split = split
        self.eval_splits = eval_splits or {}
        self.subset = subset
        self.revision = revision
        self.data_files = data_files
        self.name = name

    def rules(self, trainer: Trainer) -> Iterable[str]:
        if importlib.util.find_spec("datasets") is None:
            yield INSTALL
        yield from super().rules(trainer)

    def evaluation_names(self) -> Sequence[str]:
        return list(self.eval_splits)

    def setup(self, codec: TextCodec) -> None:
        if self.split is not None:
            self._train = {self.name: self._load(self.split, codec, self.max_examples)}
        self._evaluation = {
            name: self._load(split, codec, self.max_eval_examples) for name, split in self.eval_splits.items()
        }

    def _load(self, split: str, codec: TextCodec, limit: int | None) -> Source:
        rows = load_split(self.path, split, subset=self.subset, revision=self.revision, data_files=self.data_files)
        name = f"{self.path} [{split}]"
        try:
            self.columns.check(rows.column_names)
            source = self._source(rows, codec, name=name, limit=limit)
            source.examples[0]
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
        return source


def load_split(
    path: str,
    split: str,
    *,
    subset: str | None = None,
    revision: str | None = None,
    data_files: Mapping[str, Sequence[str]] | None = None,
) -> Any:
    """One split as a ``datasets.Dataset``. Raises ImportError or ConnectionError with the way out."""
    try:
        import datasets
    except ImportError as error:
        raise ImportError(INSTALL) from error
    files = None if data_files is None else {name: list(patterns) for name, patterns in data_files.items()}
    try:
        return datasets.load_dataset(path, subset, split=split, revision=revision, data_files=files)
    except ConnectionError as error:
        raise ConnectionError(
            f"{error}; check the network and the name, or use local files (data_files, jsonl, directory of gsm8k)"
        ) from error
