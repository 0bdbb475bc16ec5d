"""Which GPUs of this machine a process may see."""

from __future__ import annotations

import os
from glob import glob


class GpuPool:
    """Hands out this machine's GPUs, each to one process or group; a fraction shares one.

    ``CUDA_VISIBLE_DEVICES`` of the controller bounds what there is.
    """

    def __init__(self) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is None:
            names = [str(i) for i in range(len(glob("/dev/nvidia[0-9]*")))]
        else:
            names = [name for name in visible.split(",") if name]
        self.free = dict.fromkeys(names, 1.0)

    def take(self, num_gpus: float, owner: str) -> dict[str, str]:
        """The environment that shows ``num_gpus`` GPUs; empty for none. Raises ValueError when too few are free."""
        if not num_gpus:
            return {}
        wanted = num_gpus
        taken = []
        for name, free in self.free.items():
            share = min(1.0, wanted)
            if wanted > 1e-9 and free >= share - 1e-9:
                taken.append((name, share))
                wanted -= share
        if wanted > 1e-9:
            raise ValueError(
                f"{owner} wants {num_gpus:g} GPUs, but of {len(self.free)} on this machine {sum(self.free.values()):g} "
                "are free; ask for fewer, or use a launcher that spans machines"
            )
        for name, share in taken:
            self.free[name] -= share
        return {"CUDA_VISIBLE_DEVICES": ",".join(name for name, _ in taken)}
