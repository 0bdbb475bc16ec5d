"""Diagnosis: what of this machine and installation stands in the way of a run, and what to do about it."""

from areal_lit.diagnosis.examination import Examination, examine
from areal_lit.diagnosis.finding import Finding, Level

__all__ = ["Examination", "Finding", "Level", "examine"]
