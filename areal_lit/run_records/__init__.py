"""Run records: what a run wrote into its directory, read back while it goes on, after it failed or was resumed."""

from areal_lit.run_records.differences import differences
from areal_lit.run_records.metrics import Curve, Metrics, Row, parse_rows, read_metrics, read_rows
from areal_lit.run_records.pieces import Pieces, load_pieces
from areal_lit.run_records.query import Query
from areal_lit.run_records.reading import RecordsError
from areal_lit.run_records.records import Head, Sample, Tokens
from areal_lit.run_records.run import RunRecords, find_runs
from areal_lit.run_records.sample_index import Entry, SampleIndex

__all__ = [
    "Curve", "Entry", "Head", "Metrics", "Pieces", "Query", "RecordsError", "Row",
    "RunRecords", "Sample", "SampleIndex", "Tokens",
    "differences", "find_runs", "load_pieces", "parse_rows", "read_metrics", "read_rows",
]  # fmt: skip
