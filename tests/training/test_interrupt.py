"""Ctrl-C: what is under way ends first, and no press is lost where one run follows another."""

from __future__ import annotations

import os
import signal

import pytest

from adaptree.training.interrupt import ctrl_c


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_press_inside_is_known_outside_and_to_the_next() -> None:
    with ctrl_c() as outer:
        with ctrl_c() as inner:
            assert not inner()
            press()
            assert inner()
        assert outer()
        with ctrl_c() as following:
            assert following()


def test_a_second_press_stops_at_once_also_inside() -> None:
    with ctrl_c():
        press()
        with ctrl_c(), pytest.raises(KeyboardInterrupt):
            press()


def test_the_handler_from_before_is_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT)
    with ctrl_c(), ctrl_c():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
