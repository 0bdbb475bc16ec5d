"""A package whose reward fails to import and whose callback implements a contract that does not exist yet."""

from __future__ import annotations

from areal_lit.contracts import Callback


class FromTheFuture(Callback):
    """Written for a later areal-lit."""

    contract_version = 99
