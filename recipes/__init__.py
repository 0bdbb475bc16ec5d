"""Recipes that ship with areal-lit, by name, and the quickstart model."""
