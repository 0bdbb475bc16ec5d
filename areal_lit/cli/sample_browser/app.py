"""SampleBrowser: a list of samples, and the one under the cursor or its whole group beside it."""

from __future__ import annotations

import threading
from functools import cached_property
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Footer, Input, Static

from areal_lit.cli.sample_browser.table import SampleTable, table_header
from areal_lit.cli.sample_text import COLOURINGS, Colouring, describe, why_none
from areal_lit.run_records import Entry, Pieces, Query, RecordsError, RunRecords, load_pieces
from areal_lit.run_records.query import SYNTAX

FOLLOW_S = 1.0
ORDERS = ("", "sort:-reward", "sort:reward", "sort:-length", "sort:-staleness")


class SampleBrowser(App[None]):
    """Browses a run, also while it goes on.

    Args:
        query: what to show first; see ``areal_lit.run_records.query``.
        is_following: begin at the newest sample and go on to those that come.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "query", "Filter", key_display="/"),
        Binding("s", "order", "Order"),
        Binding("t", "colour", "Colours"),
        Binding("g", "group", "Group"),
        Binding("f", "follow", "Follow"),
        Binding("escape", "list", "Back to the list", show=False),
        Binding("q", "quit", "Quit"),
    ]
    CSS = """
    #list { width: 45%; max-width: 64; }
    #header { color: $text-muted; }
    #detail { width: 1fr; border-left: solid $panel; }
    .sample { width: 1fr; padding: 0 1; }
    #status { height: 1; color: $text-muted; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, run: RunRecords, *, query: str = "", is_following: bool = False) -> None:
        super().__init__()
        self.title = f"samples of {run.path}"
        self._run_records = run
        self._query = query
        self._is_following = is_following
        self._is_group = False
        self._colouring: Colouring = "none"
        self._index = run.samples()
        self._reading = threading.Lock()

    @cached_property
    def _pieces(self) -> Pieces | None:
        return load_pieces(self._run_records)

    def compose(self) -> ComposeResult:
        yield Input(value=self._query, placeholder=SYNTAX, id="query", compact=True)
        with Horizontal():
            with Vertical(id="list"):
                yield Static(table_header(), id="header", markup=False)
                yield SampleTable()
            yield Horizontal(id="detail")
        yield Static("reading ...", id="status", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.query_one(SampleTable).focus()
        self.set_interval(FOLLOW_S, self._follow)
        self._load(self._query)

    # --- reading ---------------------------------------------------------------------------------

    @work(thread=True, exclusive=True)
    def _load(self, line: str, *, only_news: bool = False) -> None:
        """Read what is new and select; in a thread, for a search may read gigabytes.

        Args:
            only_news: leave everything as it is if nothing was written since.
        """
        try:
            query = Query.parse(line)
        except RecordsError as error:
            self.call_from_thread(self._tell, str(error))
            return
        with self._reading:
            if not self._index.refresh() and only_news:
                return
            entries = query.select(self._index)
        self.call_from_thread(self._show, entries)

    def _follow(self) -> None:
        if self._is_following and not self._reading.locked():
            self._load(self._query, only_news=True)

    def _show(self, entries: list[Entry]) -> None:
        table = self.query_one(SampleTable)
        table.show(entries, at_end=self._is_following and not Query.parse(self._query).sort)
        if not entries:
            self._tell(why_none(self._run_records, self._index))
            return
        unreadable = f", {self._index.num_unreadable} lines cannot be read" if self._index.num_unreadable else ""
        following = ", following" if self._is_following else ""
        self._tell(f"{len(entries)} of {len(self._index.entries)} samples{unreadable}{following}")

    def _tell(self, message: str) -> None:
        self.query_one("#status", Static).update(Text(message))

    # --- showing ---------------------------------------------------------------------------------

    async def on_sample_table_moved(self, moved: SampleTable.Moved) -> None:
        """Show what the cursor stands on now."""
        await self._show_detail(moved.entry)

    async def _show_detail(self, entry: Entry | None) -> None:
        shown: list[Entry] = []
        if entry is not None:
            shown = self._index.group(entry) if self._is_group else [entry]
        pieces = self._pieces if self._colouring != "none" else None
        texts = [describe(each.read(), self._colouring, pieces) for each in shown]
        detail = self.query_one("#detail", Horizontal)
        panes = list(detail.query(VerticalScroll))
        if len(panes) == len(texts):
            for pane, text in zip(panes, texts, strict=True):
                pane.query_one(Static).update(text)
            return
        await detail.remove_children()
        await detail.mount(*(VerticalScroll(Static(text), classes="sample") for text in texts))

    # --- keys ------------------------------------------------------------------------------------

    def action_query(self) -> None:
        self.query_one("#query", Input).focus()

    def action_list(self) -> None:
        self.query_one(SampleTable).focus()

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Select anew."""
        self._query = submitted.value
        self._load(self._query)
        self.query_one(SampleTable).focus()

    def action_order(self) -> None:
        """The next order."""
        terms = self._query.split()
        order = next((term for term in terms if term.startswith("sort:")), "")
        place = ORDERS.index(order) + 1 if order in ORDERS else 0
        kept = [term for term in terms if not term.startswith("sort:")]
        self._query = " ".join(filter(None, [*kept, ORDERS[place % len(ORDERS)]]))
        self.query_one("#query", Input).value = self._query
        self._load(self._query)

    async def action_colour(self) -> None:
        """The next colouring."""
        self._colouring = COLOURINGS[(COLOURINGS.index(self._colouring) + 1) % len(COLOURINGS)]
        await self._show_detail(self.query_one(SampleTable).current)

    async def action_group(self) -> None:
        """The whole group side by side, or one sample."""
        self._is_group = not self._is_group
        await self._show_detail(self.query_one(SampleTable).current)

    def action_follow(self) -> None:
        """Follow, or stop following."""
        self._is_following = not self._is_following
        self._load(self._query)
