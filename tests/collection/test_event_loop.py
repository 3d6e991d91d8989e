"""Coroutines that are run from plain code, with and without an event loop around it."""

import asyncio
import contextvars
import threading

import pytest

from pairwright.engines.event_loops import run_to_end

pytestmark = pytest.mark.stress

NAME = contextvars.ContextVar("NAME", default="nobody")


async def where():
    await asyncio.sleep(0)
    return threading.current_thread().name, NAME.get()


async def fails():
    raise ValueError("on purpose")


def test_without_a_running_loop_it_runs_in_this_thread():
    assert run_to_end(where()) == (threading.current_thread().name, "nobody")


def test_inside_a_running_loop_it_runs_in_a_thread_with_the_same_context():
    async def kernel():
        NAME.set("ada")
        return run_to_end(where())

    assert asyncio.run(kernel()) == ("pairwright-collect", "ada")


def test_errors_come_back_from_the_thread():
    async def kernel():
        run_to_end(fails())

    with pytest.raises(ValueError, match="on purpose"):
        asyncio.run(kernel())
