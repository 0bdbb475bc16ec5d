"""BoundedCurve: a metric over a run's steps, in bounded memory however long the run is."""

from __future__ import annotations

from array import array


class BoundedCurve:
    """Points in order of their steps. When they are twice as many as wanted, neighbours become their mean.

    A value given again for the last step replaces the one before; one that is not finite must not be given. All memory
    is taken at once, so that what a run takes is seen at its start.

    Args:
        capacity: points that are kept at least, once there were so many.
    """

    def __init__(self, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._width = 1
        self._last = (float("nan"), 0.0)
        self._size = 0
        # of what shares a point: sum of steps, sum of values, how many
        self._steps, self._values, self._counts = (array("d", [0.0]) * (2 * capacity) for _ in range(3))

    def __len__(self) -> int:
        return self._size

    def add(self, step: int, value: float) -> None:
        """Append a point; steps never decrease."""
        previous_step, previous = self._last
        self._last = (step, value)
        if step == previous_step:
            self._values[self._size - 1] += value - previous
        elif self._size and step // self._width == int(previous_step) // self._width:
            self._join(self._size - 1, step, value, 1)
        else:
            self._put(self._size, step, value, 1)
            self._size += 1
            if self._size == 2 * self._capacity:
                self._merge()

    def points(self) -> tuple[array[float], array[float]]:
        """Steps and values; of merged points the means."""
        steps, values, counts = (column[: self._size] for column in (self._steps, self._values, self._counts))
        return (
            array("d", (total / count for total, count in zip(steps, counts, strict=True))),
            array("d", (total / count for total, count in zip(values, counts, strict=True))),
        )

    def _put(self, index: int, step: float, value: float, count: float) -> None:
        self._steps[index], self._values[index], self._counts[index] = step, value, count

    def _join(self, index: int, step: float, value: float, count: float) -> None:
        self._steps[index] += step
        self._values[index] += value
        self._counts[index] += count

    def _merge(self) -> None:
        """Double the steps that share a point until at most ``capacity`` are left."""
        while self._size > self._capacity:
            self._width *= 2
            last, place = -1, -1
            for index in range(self._size):
                point = self._steps[index], self._values[index], self._counts[index]
                previous_place, place = place, int(point[0] / point[2]) // self._width
                if last >= 0 and place == previous_place:
                    self._join(last, *point)
                else:
                    last += 1
                    self._put(last, *point)
            self._size = last + 1
