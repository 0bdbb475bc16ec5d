"""The leaves of a recipe: every value that holds no others, by its dotted key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted key and value of each (``policy.optimizer.init_args.lr``, ``loggers.0.class_path``).

    An empty mapping or list has none.

    Args:
        key: of the value itself.
    """
    if isinstance(value, Mapping):
        inner = value.items()
    elif isinstance(value, list):
        inner = {str(index): item for index, item in enumerate(value)}.items()
    else:
        yield key, value
        return
    for name, item in inner:
        yield from leaves(item, f"{key}.{name}" if key else str(name))
