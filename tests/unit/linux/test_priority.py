"""The priority of PrimeMaster, the gateway and the node agents."""

from __future__ import annotations

import os
import threading

import pytest

from dljob.linux import priority


def test_every_thread_of_the_process_is_raised_and_a_refusal_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, ...]] = []

    def refused(*words: int) -> None:
        asked.append(words)
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "setpriority", refused)
    done = threading.Event()
    beside = threading.Thread(target=done.wait)
    beside.start()
    priority.raise_priority()
    done.set()
    beside.join()
    threads = (threading.get_native_id(), beside.native_id)
    assert {(os.PRIO_PROCESS, thread, priority.NICENESS) for thread in threads} <= set(asked)
