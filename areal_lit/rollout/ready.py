"""ReadyGroups: accepted groups that wait for a step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from areal_lit.staleness import is_stale
from areal_lit.types import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A group that a step may consume.

    Args:
        oldest_version: of its tokens; None if it has none.
        max_new_tokens: what each of its episodes was given.
    """

    group: Group
    oldest_version: int | None
    max_new_tokens: int


class ReadyGroups:
    """A queue in the order in which groups were accepted.

    Args:
        max_staleness: beyond it a group is stale.
    """

    def __init__(self, max_staleness: int) -> None:
        self._max_staleness = max_staleness
        self._queue: list[Ready] = []

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Ready]:
        return iter(self._queue)

    def add(self, group: Group, *, max_new_tokens: int) -> None:
        """Append a group."""
        self._queue.append(Ready(group=group, oldest_version=group.oldest_version, max_new_tokens=max_new_tokens))

    def take(self, count: int, *, by_id: bool) -> list[Ready]:
        """Remove the first ones, in the order of the queue or of prompt ids."""
        if by_id:
            self._queue.sort(key=lambda ready: ready.group.group_id)
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken

    def take_stale(self, step: int) -> list[Ready]:
        """Remove those that are too old for a step."""
        stale = [ready for ready in self._queue if self.is_stale(ready, step)]
        if stale:
            self._queue = [ready for ready in self._queue if not self.is_stale(ready, step)]
        return stale

    def is_stale(self, ready: Ready, step: int) -> bool:
        """Whether a group is too old for a step."""
        return is_stale(step=step, oldest_version=ready.oldest_version, max_staleness=self._max_staleness)
