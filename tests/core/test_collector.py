"""The collector's rest ends as it began."""

from __future__ import annotations

import gc

import pytest

from areal_lit.collector import collected_later


def fail():
    with collected_later():
        with collected_later():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError


def test_the_collector_rests_and_goes_on_after_an_error():
    assert gc.isenabled()
    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    gc.disable()
    try:
        with collected_later():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
