"""Raises on import, as an optional package with a missing library does."""

from __future__ import annotations

raise ImportError("libreward.so.7: cannot open shared object file")
