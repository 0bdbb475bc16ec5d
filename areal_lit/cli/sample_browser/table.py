"""SampleTable: a line per sample, of which only the visible ones are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import set_cell_size
from rich.segment import Segment
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from areal_lit.cli.sample_text import number
from areal_lit.run_records import Entry, Head

COLUMNS = (("step", 7), ("reward", 8), ("tokens", 6), ("stale", 5), ("prompt", 16), ("nr", 3), ("stop", 11))
"""What a narrow terminal cuts off comes last."""
WIDTH = sum(width + 1 for _, width in COLUMNS)


def table_header() -> str:
    """The names of the columns."""
    return " ".join(set_cell_size(name, width) for name, width in COLUMNS)


def _row(head: Head) -> str:
    cells = (
        str(head.step), number(head.reward), str(head.num_generated),
        "-" if head.staleness is None else str(head.staleness), f"{head.source} {head.prompt_id}".strip(),
        str(head.sample), head.stop_reason,
    )  # fmt: skip
    return " ".join(set_cell_size(cell, width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))


class SampleTable(ScrollView, can_focus=True):
    """A list with a cursor. ``Moved`` says what the cursor stands on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown,space", "page(1)", "Page down", show=False),
        Binding("home", "jump(0)", "First", show=False),
        Binding("end", "jump(-1)", "Last", show=False),
    ]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"sample-table--cursor"}
    DEFAULT_CSS = """
    SampleTable { width: 1fr; }
    SampleTable > .sample-table--cursor { background: $block-cursor-background; color: $block-cursor-foreground; }
    """

    class Moved(Message):
        """The cursor stands on another sample, or on none."""

        def __init__(self, entry: Entry | None) -> None:
            self.entry = entry
            super().__init__()

    def __init__(self) -> None:
        super().__init__()
        self._entries: Sequence[Entry] = ()
        self._cursor = 0

    @property
    def current(self) -> Entry | None:
        """What the cursor stands on."""
        return self._entries[self._cursor] if self._entries else None

    def show(self, entries: Sequence[Entry], *, at_end: bool) -> None:
        """List these; the cursor stays on its sample if that is among them, or goes to the last."""
        current = self.current
        self._entries = entries
        self._cursor = len(entries) - 1 if at_end else 0
        if current is not None and not at_end and current in entries:
            self._cursor = entries.index(current)
        self.virtual_size = Size(WIDTH, len(entries))
        self._moved()

    def action_move(self, by: int) -> None:
        self._go(self._cursor + by)

    def action_page(self, direction: int) -> None:
        self._go(self._cursor + direction * max(1, self.size.height - 1))

    def action_jump(self, to: int) -> None:
        self._go(to if to >= 0 else len(self._entries) - 1)

    def _go(self, row: int) -> None:
        self._cursor = max(0, min(row, len(self._entries) - 1))
        self._moved()

    def _moved(self) -> None:
        height = max(1, self.size.height)
        top = min(max(self.scroll_offset.y, self._cursor - height + 1), self._cursor)
        self.scroll_to(y=top, animate=False, immediate=True)
        self.refresh()
        self.post_message(self.Moved(self.current))

    def render_line(self, y: int) -> Strip:
        row = self.scroll_offset.y + y
        width = self.size.width
        if row >= len(self._entries):
            return Strip.blank(width, self.rich_style)
        style = self.get_component_rich_style("sample-table--cursor") if row == self._cursor else self.rich_style
        return Strip([Segment(set_cell_size(_row(self._entries[row].head), width), style)], width)
