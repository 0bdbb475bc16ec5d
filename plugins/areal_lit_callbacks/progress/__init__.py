"""``progress``: what a run does, told on a terminal, in a notebook or in a file."""

from areal_lit_callbacks.progress.callback import Progress

__all__ = ["Progress"]
