"""The memory of a rank's device beside its steps: noted now and then, and only where torch uses a device."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dljob.runtime.process import worker_context
from dljob.runtime.process.worker_context import ProgressCounter, device_mib, with_device


def torch(**kinds: Any) -> Any:
    return SimpleNamespace(**kinds)


def used(mib: int, *, initialized: bool = True) -> Any:
    return SimpleNamespace(is_initialized=lambda: initialized, memory_reserved=lambda: (mib << 20) + 5)


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (None, None),
        (torch(), None),
        (torch(cuda=used(7)), 7),
        (torch(cuda=used(7, initialized=False)), None),
        (torch(cuda=used(7, initialized=False), npu=used(9)), 9),
        (torch(cuda=SimpleNamespace(), npu=used(3)), 3),
    ],
)
def test_memory_of_a_device_in_use_is_found(monkeypatch, module, found):
    monkeypatch.setitem(sys.modules, "torch", module)
    assert device_mib() == found


def test_device_is_looked_at_now_and_then_with_the_steps(monkeypatch):
    now, seen = [100.0], iter([None, 5, 6])
    monkeypatch.setattr(worker_context.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(worker_context, "device_mib", lambda: next(seen))
    progress = ProgressCounter()
    report = with_device(progress.put, progress.note)
    noted: list[Any] = []
    for step in range(6):
        report(step, {})
        now[0] += 5.0
        count = progress._slot.read()
        assert count is not None
        assert count.step == step
        noted.append(count.beside.get("device"))
    assert noted == [None, None, 5, 5, 6, 6]
