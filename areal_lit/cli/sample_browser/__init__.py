"""The samples of a run in the terminal, with textual."""

from areal_lit.cli.sample_browser.app import SampleBrowser

__all__ = ["SampleBrowser"]
