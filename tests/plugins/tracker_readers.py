"""What trackers keep of a run on disk, read with their own libraries."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image


@dataclass(slots=True, kw_only=True)
class Logged:
    """A run as its tracker has it."""

    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    samples: list[str] = field(default_factory=list)
    figures: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Width and height."""
    config: str = ""
    status: str = ""
    num_runs: int = 1


def read_lightning(run_dir: Path) -> Logged:
    logged = Logged()
    for file in sorted(run_dir.glob("lightning/CSVLogger/lightning_logs/version_*/metrics.csv")):
        with file.open() as lines:
            for row in csv.DictReader(lines):
                step = int(row.pop("step"))
                for name, value in row.items():
                    if value:
                        logged.metrics[name].append((step, float(value)))
        logged.config = file.with_name("hparams.yaml").read_text()
    return logged


def read_tensorboard(run_dir: Path) -> Logged:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), size_guidance={"tensors": 0, "images": 0, "scalars": 0})
    events.Reload()
    tags = events.Tags()
    logged = Logged(config=(run_dir / "tensorboard" / "hparams.yaml").read_text())
    for name in tags["scalars"]:
        logged.metrics[name] = [(event.step, event.value) for event in events.Scalars(name)]
    for name in tags["tensors"]:
        if name.startswith("samples/"):
            logged.samples += [event.tensor_proto.string_val[0].decode() for event in events.Tensors(name)]
    logged.figures = {name: (image.width, image.height) for name in tags["images"] for image in events.Images(name)}
    return logged


def wandb_records(run_dir: Path) -> Iterator[tuple[Path, Any]]:
    """The records of all processes of a run, each with its process's directory."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        for data in _leveldb_records(file.read_bytes(), header=7):
            yield file.parent, Record.FromString(data)


def read_wandb(run_dir: Path) -> Logged:
    logged, configs, ids = Logged(), {}, set()
    for directory, record in wandb_records(run_dir):
        ids.add(directory.name.rpartition("-")[2])
        configs |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
        configs |= {item.key: json.loads(item.value_json) for item in record.config.update}
        if record.HasField("exit"):
            logged.status = str(record.exit.exit_code)
        values: dict[str, Any] = {}
        for item in record.history.item:
            name, *inner = item.nested_key or [item.key]
            place = values.setdefault(name, {}) if inner else values
            place[inner[0] if inner else name] = _wandb_value(item)
        step = values.pop("trainer/global_step", None)
        for name, value in values.items():
            kind = value.get("_type") if isinstance(value, dict) else None
            if kind == "table-file":
                table = json.loads((directory / "files" / value["path"]).read_text())
                logged.samples += [row[-1] for row in table["data"]]
            elif kind == "images/separated":
                logged.figures[name] = _size(directory / "files" / value["filenames"][0])
            elif not name.startswith("_"):
                logged.metrics[name].append((step, value))
    logged.config, logged.num_runs = json.dumps(configs), len(ids)
    return logged


def _wandb_value(item: Any) -> Any:
    kinds = [field.name for field, _ in item.ListFields() if field.name not in ("key", "nested_key")]
    value = getattr(item, kinds[0]) if kinds else 0
    return json.loads(value) if kinds and kinds[0] in ("value_json", "json") else value


def read_mlflow(run_dir: Path) -> Logged:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow' / 'mlflow.db'}")
    (experiment,) = [e for e in client.search_experiments() if e.name == "areal-lit"]
    run, *others = client.search_runs([experiment.experiment_id])
    place = run_dir / "mlflow" / "artifacts" / run.info.run_id / "artifacts"
    return Logged(
        metrics={
            name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        },
        samples=[row[-1] for file in place.glob("samples/*.json") for row in json.loads(file.read_text())["data"]],
        figures={f"figures/{file.stem}": _size(file) for file in place.glob("figures/*.png")},
        config=json.dumps(run.data.params) + (place / "recipe.json").read_text(),
        status=run.info.status,
        num_runs=1 + len(others),
    )


def read_aim(run_dir: Path) -> Logged:
    from aim import Repo
    from aim.sdk.index_manager import RepoIndexManager
    from aim.storage.context import Context

    repo = Repo(str(run_dir / "aim"))
    (run_hash,) = repo.list_all_runs()
    RepoIndexManager.get_index_manager(repo).index(run_hash)  # as `aim up` does
    run = Repo(str(run_dir / "aim")).get_run(run_hash)
    logged = Logged(config=json.dumps(run["recipe"]), status=run["status"])
    for metric in run.metrics():
        table = metric.dataframe()
        logged.metrics[metric.name] = list(zip(table["step"], table["value"], strict=True))
    for kind, found in run.collect_sequence_info(("texts", "images")).items():
        for name in (one["name"] for one in found):
            if kind == "texts":
                steps = run.get_text_sequence(name, Context({})).values.sparse_list()[1]
                logged.samples += [text.data for texts in steps for text in texts]
            else:
                images = run.get_image_sequence(name, Context({})).values.sparse_list()[1]
                logged.figures[name] = images[-1].to_pil_image().size
    return logged


def read_trackio(run_dir: Path) -> Logged:
    logged = Logged()
    run_id = json.loads((run_dir / "trackio" / "areal_lit.json").read_text())["run_id"]
    place = Path(os.environ.get("TRACKIO_DIR", run_dir / "trackio"))
    with closing(sqlite3.connect(place / "areal-lit.db")) as database:
        query = "SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY id"
        for step, values in database.execute(query, [run_id]):
            for name, value in json.loads(values).items():
                if not isinstance(value, dict):
                    logged.metrics[name].append((step, float(value)))
                elif value["_type"] == "trackio.table":
                    logged.samples += [row["completion"] for row in value["_value"]]
                else:
                    logged.figures[name] = _size(place / "media" / value["file_path"])
        ids = database.execute("SELECT DISTINCT run_id FROM metrics WHERE run_name = ?", [run_id]).fetchall()
        *_, (config,) = database.execute("SELECT config FROM configs WHERE run_name = ?", [run_id])
    logged.config, logged.num_runs = config.decode(), len(ids)
    return logged


def read_swanlab(run_dir: Path) -> Logged:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    logged, ids = Logged(), set()
    for file in sorted(run_dir.glob("swanlab/run-*/*.swanlab")):
        ids.add(file.stem)
        reader = DataStoreReader()
        reader.open(file)
        for data in iter(reader.scan, None):
            record = Record.FromString(data)
            scalar, media = record.scalar, record.media
            if scalar.key:
                logged.metrics[scalar.key].append((scalar.step, scalar.value.number))
            for item in media.value.items if media.key == "samples" else ():
                logged.samples.append((file.parent / "media" / "text" / item.filename).read_text())
            if media.key.startswith("figures/"):
                logged.figures[media.key] = _size(file.parent / "media" / "image" / media.value.items[0].filename)
            if record.HasField("finish"):
                logged.status = str(record.finish.state)
        reader.close()
        logged.config = (file.parent / "files" / "config.yaml").read_text()
    logged.num_runs = len(ids)
    return logged


def _size(picture: Path) -> tuple[int, int]:
    with Image.open(picture) as image:
        return image.size


def _leveldb_records(data: bytes, *, header: int) -> Iterator[bytes]:
    """Records of a log in LevelDB's format: blocks of 32 KiB with pieces, each after its checksum, length and kind."""
    position, record = header, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
        position += 7
        record += data[position : position + length]
        position += length
        if kind in (1, 4):
            yield record
            record = b""


READERS: dict[str, Any] = {
    "lightning": read_lightning,
    "tensorboard": read_tensorboard,
    "wandb": read_wandb,
    "mlflow": read_mlflow,
    "aim": read_aim,
    "trackio": read_trackio,
    "swanlab": read_swanlab,
}
