"""Cell: the one class of instance that the backend makes. It holds an object, and calls its methods by name.

The SDK's local mode does not await methods (0.9.10: the answer is the coroutine itself), and a handle of another class
would need that class wherever it is looked up by name. So a cell has a loop of its own, and one method.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
import traceback
from concurrent.futures import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dljob.master.state.views import Outcome
from dljob.runtime.process.messages import OutcomeError

CLOSE_S = 20.0
"""Seconds that the tasks of an object have to end after they were cancelled."""
OWN_NAME: ContextVar[str] = ContextVar("dljob_own_name", default="")
"""Name of the actor that is being made; its constructor has no other way to know."""


@dataclass(frozen=True, slots=True)
class CellFailure:
    """An exception of a method as text: the SDK wraps exceptions in a class of its own, which pickles badly."""

    error_type: str
    message: str
    traceback: str
    outcome: Outcome | None = None


class Cell:
    """An object of the class at a dotted path, made in the loop in which its methods are awaited."""

    def __init__(self, path: str, args: tuple[Any, ...], actor: str = "") -> None:
        module, _, name = path.rpartition(".")
        cls = getattr(importlib.import_module(module), name)
        self._loop = asyncio.new_event_loop()
        self._closed = False
        threading.Thread(target=self._run, name=f"dljob-cell-{name}", daemon=True).start()
        # In the loop: constructors such as PrimeMaster's ask for the running one.
        self._own: Any = self._await(_construct(cls, args, actor))

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def answer(self, method: str, args: tuple[Any, ...]) -> Any:
        """Return the result of a method, awaited; a CellFailure when it raised."""
        try:
            result = getattr(self._own, method)(*args)
            return self._await(result) if inspect.isawaitable(result) else result
        except (Exception, CancelledError) as error:  # noqa: BLE001 - it goes to the caller
            outcome = error.outcome if isinstance(error, OutcomeError) else None
            return CellFailure(type(error).__name__, str(error), traceback.format_exc(), outcome)

    def __yr_shutdown__(self, grace_period_second: int = 0) -> None:
        """Close the object and cancel its tasks before the instance ends: in local mode no process ends with it."""
        if self._closed:
            return
        self._closed = True
        if hasattr(self._own, "close"):
            self._own.close()
        # Tasks before the loop: one that is stopped with tasks in it never ends them.
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _await(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(awaitable), self._loop).result()


async def _construct(cls: type, args: tuple[Any, ...], actor: str) -> Any:
    OWN_NAME.set(actor)
    return cls(*args)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


async def _cancel_all() -> None:
    me = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not me]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
