"""``plots``: a picture of every metric, redrawn while the run goes on."""

from areal_lit_loggers.plots.logger import Plots

__all__ = ["Plots"]
