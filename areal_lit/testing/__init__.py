"""Fakes and conformance suites for plugin authors."""
