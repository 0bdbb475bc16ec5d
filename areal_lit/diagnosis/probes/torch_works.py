"""torch can multiply, and use the GPUs that it sees."""

from __future__ import annotations

import json

import torch


def main() -> None:
    has_gpus = torch.cuda.is_available()
    ones = torch.ones(4, 4)
    if (total := float(ones.matmul(ones).sum())) != 64:
        raise ArithmeticError(f"the product of two matrices of ones must sum up to 64, got {total}")
    if has_gpus:
        torch.ones(1, device="cuda").item()
    found = {
        "version": torch.__version__,
        "build": torch.version.cuda or torch.version.hip or "",
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if has_gpus else [],
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
