"""``python -m areal_lit`` is the ``areal-lit`` command."""

from __future__ import annotations

from areal_lit.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
