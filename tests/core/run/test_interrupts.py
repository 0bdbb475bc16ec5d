"""Signals: the first asks, the second ends at once, and handlers are put back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from areal_lit.run.interrupts import Interrupts


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


def test_handlers_are_put_back() -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    with Interrupts(lambda: None):
        assert signal.getsignal(signal.SIGTERM) not in before
    assert [signal.getsignal(number) for number in numbers] == before


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
