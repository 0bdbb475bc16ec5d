"""Plugins for areal-lit by somebody else."""
