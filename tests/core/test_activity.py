"""Whoever looks sees the innermost thing under way, from any thread, and nothing after its end."""

from __future__ import annotations

import threading

import pytest

from areal_lit.activity import Activity


def words(activity: Activity) -> str | None:
    now = activity.now()
    return None if now is None else now.what


def test_the_innermost_is_told_and_the_outer_one_again() -> None:
    activity = Activity()
    assert words(activity) is None
    with activity.during("loading the policy"):
        with activity.during(lambda: "waiting"):
            assert words(activity) == "waiting"
        assert words(activity) == "loading the policy"
    assert words(activity) is None


def test_an_error_ends_it_too() -> None:
    activity = Activity()
    with pytest.raises(KeyError), activity.during("reading"):
        raise KeyError
    assert activity.now() is None


def test_two_threads_end_in_any_order() -> None:
    activity, inside, leave = Activity(), threading.Event(), threading.Event()

    def other() -> None:
        with activity.during("receiving"):
            inside.set()
            leave.wait(10)

    with activity.during("sending"):
        thread = threading.Thread(target=other)
        thread.start()
        inside.wait(10)
        assert words(activity) == "receiving"
    assert words(activity) == "receiving"
    leave.set()
    thread.join()
    assert words(activity) is None
