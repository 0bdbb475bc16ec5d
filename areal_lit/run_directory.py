"""RunDirectory: where everything a run writes is kept, one run at a time."""

from __future__ import annotations

import fcntl
import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import yaml

_SECRET = re.compile(r"(token|secret|password|passwd|api_?key|credential)s?$", re.IGNORECASE)


class RunDirectory:
    """``runs/NAME`` with config.yaml, logs/ and checkpoints/; locked while open.

    Args:
        path: the directory.
        resume: an existing run is to be gone on with.
        overwrite: an existing run is deleted.

    Raises:
        FileExistsError: the directory holds a run already and neither was asked for, or it is in use.
    """

    def __init__(self, path: Path, *, resume: bool, overwrite: bool) -> None:
        self.path = path
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        if (path / "config.yaml").exists() and not resume:
            if not overwrite:
                raise FileExistsError(
                    f"{path} holds a run already; go on with it (--resume auto), choose another name (--name NAME) "
                    "or delete it (--overwrite true)"
                )
            with _lock(path):
                shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(path)
        self.logs.mkdir(exist_ok=True)
        self._handler = logging.FileHandler(self.logs / "controller.log")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        package_logger = logging.getLogger("areal_lit")
        package_logger.addHandler(self._handler)
        package_logger.setLevel(logging.INFO)

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Keep the recipe as resolved, without secrets."""
        partial = self.path / ".config.yaml"
        partial.write_text(yaml.safe_dump(redact(config), sort_keys=False))
        partial.rename(self.path / "config.yaml")

    def close(self) -> None:
        """Let another process use the directory."""
        logging.getLogger("areal_lit").removeHandler(self._handler)
        self._handler.close()
        self._lock.close()


def _lock(path: Path) -> IO[str]:
    file = (path / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise FileExistsError(f"{path} is in use by another process; choose another name (--name NAME)") from None
    return file


def redact(value: Any) -> Any:
    """A copy in which values under keys that look like secrets are hidden, and tuples are lists."""
    if isinstance(value, Mapping):
        return {
            str(key): "***" if isinstance(item, str) and item and _SECRET.search(str(key)) else redact(item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
