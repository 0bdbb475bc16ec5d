"""``areal-lit samples``: browse what a run's model wrote; print it where there is no terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from areal_lit.run_records import Query, RecordsError, RunRecords
from areal_lit.run_records.query import SYNTAX

PRINTED = 10


def run(arguments: Sequence[str]) -> int:
    """0; a directory without a run and a query that cannot be read are the caller's to report."""
    parsed = _parser().parse_intermixed_args(list(arguments))
    records = RunRecords(_directory(parsed.run))
    query = " ".join(parsed.query)
    Query.parse(query)
    is_interactive = parsed.print is None and not parsed.json and sys.stdout.isatty() and sys.stdin.isatty()
    if parsed.follow and not is_interactive:
        raise RecordsError("--follow needs a terminal, without --print and --json")
    if is_interactive:
        from areal_lit.cli.sample_browser import SampleBrowser

        SampleBrowser(records, query=query, is_following=parsed.follow).run()
        return 0
    return _print(records, Query.parse(query), PRINTED if parsed.print is None else parsed.print, parsed.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="areal-lit samples",
        description="Browse prompts, completions, rewards and versions of a run. Without a terminal they are printed.",
        epilog=f"QUERY: {SYNTAX}",
    )
    parser.add_argument("run", metavar="RUN", help="a run's directory")
    parser.add_argument("query", nargs="*", metavar="QUERY", help="which samples, in which order; see below")
    parser.add_argument("--follow", action="store_true", help="begin with the newest, and show new ones as they come")
    parser.add_argument(
        "--print", type=int, metavar="N", help="print the last N that match, with sort: the first N; 0 is all"
    )
    parser.add_argument("--json", action="store_true", help="print records as JSON, one a line")
    return parser


def _directory(text: str) -> Path:
    """The directory; that of samples.jsonl where the file itself is named."""
    path = Path(text)
    return path.parent if path.is_file() else path


def _print(records: RunRecords, query: Query, num: int, is_json: bool) -> int:
    from areal_lit.cli.sample_text import describe, why_none

    index = records.samples()
    index.refresh()
    found = query.select(index)
    # an order puts first what was asked for; without one the newest come last
    end = "first" if query.sort else "last"
    for entry in found[: num or None] if query.sort else found[-num:]:
        sample = entry.read()
        print(msgspec.json.encode(sample).decode() if is_json else f"--- {describe(sample).plain}\n")
    if not found:
        print(why_none(records, index), file=sys.stderr)
    elif len(found) > num > 0:
        print(f"the {end} {num} of {len(found)}; --print 0 is all of them", file=sys.stderr)
    return 0
