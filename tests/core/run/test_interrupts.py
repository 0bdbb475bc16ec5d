"""Signals: the first asks, the second ends at once, and handlers are put back."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from areal_lit.run.interrupts import Interrupts, interrupted_after


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.usefixtures("hears_hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_patient_run_is_asked_first_and_ended_then(number: int) -> None:
    told: list[bool] = []
    interrupts = Interrupts(lambda: told.append(interrupts.requested))
    with interrupts:
        interrupts.is_patient = True
        send(number)
        assert told == [True], "the request is noted before anyone is told"
        with pytest.raises(KeyboardInterrupt):
            send(number)
    assert told == [True]


def test_where_nothing_can_be_lost_the_first_signal_ends_the_run() -> None:
    told: list[str] = []
    with Interrupts(lambda: told.append("asked")), pytest.raises(KeyboardInterrupt):
        send(signal.SIGTERM)
    assert told == []


@pytest.mark.usefixtures("hears_hangups")
def test_a_run_started_with_nohup_goes_on_when_its_terminal_closes() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts(lambda: None) as interrupts:
        interrupts.is_patient = True
        send(signal.SIGHUP)
        assert not interrupts.requested
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGTERM), send(signal.SIGTERM)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


class InterruptedAsItGoes:
    """A signal arrives while Python destroys the object, where no exception can be raised."""

    def __del__(self) -> None:
        send(signal.SIGTERM)


def test_an_interrupt_that_nobody_could_catch_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    with Interrupts(lambda: None):
        InterruptedAsItGoes()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(30)
    assert capsys.readouterr().err == ""


def test_what_else_nobody_could_catch_is_told_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __del__(self) -> None:
            raise ValueError("broken")

    told: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: told.append(str(unraisable.exc_value)))
    with Interrupts(lambda: None):
        Broken()
    assert told == ["broken"]


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [*(signal.getsignal(number) for number in numbers), sys.unraisablehook]
    with Interrupts(lambda: None):
        assert signal.getsignal(signal.SIGTERM) not in before
        assert sys.unraisablehook not in before
    assert [*(signal.getsignal(number) for number in numbers), sys.unraisablehook] == before


def test_outside_the_main_thread_nothing_is_taken_over() -> None:
    seen: list[object] = []

    def work() -> None:
        with Interrupts(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler])
def test_what_takes_too_long_is_interrupted_whatever_became_of_ctrl_c(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupted_after(0.1):
            assert not threading.Event().wait(60)
        with interrupted_after(60.0):
            pass
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_no_other_thread_is_interrupted() -> None:
    def takes_long() -> bool:
        with interrupted_after(0.01):
            return threading.Event().wait(0.1)

    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(takes_long).result(60) is False
