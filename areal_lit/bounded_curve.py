"""BoundedCurve: a metric over a run's steps, in bounded memory however long the run is."""

from __future__ import annotations

from array import array


class BoundedCurve:
    """Points in order of their steps. When they are twice as many as wanted, neighbours become their mean.

    A value given again for the last step replaces the one before; one that is not finite must not be given.

    Args:
        capacity: points that are kept at least, once there were so many.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._width = 1
        self._last = (float("nan"), 0.0)
        self._steps = array("d")
        self._values = array("d")
        self._counts = array("d")

    def __len__(self) -> int:
        return len(self._counts)

    def add(self, step: int, value: float) -> None:
        """Append a point; steps never decrease."""
        previous_step, previous = self._last
        self._last = (step, value)
        if step == previous_step:
            self._values[-1] += value - previous
        elif self._counts and step // self._width == int(previous_step) // self._width:
            self._steps[-1] += step
            self._values[-1] += value
            self._counts[-1] += 1
        else:
            self._steps.append(step)
            self._values.append(value)
            self._counts.append(1)
            if len(self) >= 2 * self._capacity:
                self._merge()

    def points(self) -> tuple[array[float], array[float]]:
        """Steps and values; of merged points the means."""
        return (
            array("d", (total / count for total, count in zip(self._steps, self._counts, strict=True))),
            array("d", (total / count for total, count in zip(self._values, self._counts, strict=True))),
        )

    def _merge(self) -> None:
        """Double the steps that share a point until at most ``capacity`` are left."""
        while len(self) > self._capacity:
            self._width *= 2
            merged: dict[int, list[float]] = {}
            for step, value, count in zip(self._steps, self._values, self._counts, strict=True):
                sums = merged.setdefault(int(step / count) // self._width, [0.0, 0.0, 0.0])
                for index, part in enumerate((step, value, count)):
                    sums[index] += part
            self._steps, self._values, self._counts = (
                array("d", column) for column in zip(*merged.values(), strict=True)
            )
