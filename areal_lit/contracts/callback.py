"""Callback: an object with hook implementations."""

from __future__ import annotations

from areal_lit.contracts.component import Component


class Callback(Component):
    """Methods marked with ``areal_lit.hookimpl`` and named as in ``hookspecs`` are called by the run.

    Instances with a hook marked [rank] also travel to ranks, and must pickle.
    """
