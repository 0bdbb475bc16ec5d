"""The engine's half of Spool: standard library and torch only."""

import time
from pathlib import Path

import torch


class SpoolReceiver:
    """Waits for the file of a version and reads it."""

    def receive(self, params, index, timeout_s):
        path = Path(params["path"])
        deadline = time.monotonic() + timeout_s
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"no weights at {path} within {timeout_s} s")
            time.sleep(0.002)
        yield from torch.load(path, weights_only=True).items()
