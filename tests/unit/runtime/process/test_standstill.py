"""Since when a process does nothing that can be seen."""

from __future__ import annotations

import pytest

from dljob.runtime.process import standstill
from dljob.runtime.process.standstill import Standstill


class Machine:
    """What the process has done so far: CPU seconds, size of its output, bytes moved; and the time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.done, self.listens = 100.0, (1.0, 10, 1000), False
        monkeypatch.setattr(standstill, "monotonic", lambda: self.now)
        monkeypatch.setattr(Standstill, "_look", staticmethod(lambda: self.done))
        monkeypatch.setattr(standstill.own_sockets, "listens", lambda: self.listens)
        self.standstill = Standstill()

    def look(self, cpu_s: float = 0.0, printed: int = 0, moved: int = 0) -> float | None:
        self.now += 2.0
        self.done = self.done[0] + cpu_s, self.done[1] + printed, self.done[2] + moved
        self.standstill.look()
        return self.standstill.since


def test_a_loop_that_looks_for_a_file_stands_still(monkeypatch):
    machine = Machine(monkeypatch)
    assert [machine.look(cpu_s=0.01, moved=900) for _ in range(10)] == [100.0] * 10
    assert machine.standstill.lasts(20.0)
    assert not machine.standstill.lasts(21.0)


@pytest.mark.parametrize("work", [{"cpu_s": 0.3}, {"cpu_s": -1.0}, {"printed": 5}, {"moved": 1 << 20}])
def test_cpu_output_and_input_are_work(work, monkeypatch):
    machine = Machine(monkeypatch)
    assert machine.look() == 100.0
    assert machine.look(**work) is None  # type: ignore[arg-type]
    assert machine.look() == 104.0


def test_work_of_dljobs_own_does_not_count(monkeypatch):
    machine = Machine(monkeypatch)
    assert machine.look() == 100.0
    machine.done = (9.0, 10, 1 << 20)
    machine.standstill.skip()
    assert machine.look() == 100.0


def test_a_server_waits_for_its_clients(monkeypatch):
    machine = Machine(monkeypatch)
    machine.listens = True
    assert machine.look() is None
    assert not machine.standstill.lasts(0.0)


def test_what_this_process_does_is_seen():
    cpu_s, size, moved = Standstill._look()
    assert cpu_s > 0.0
    assert size >= 0
    assert moved > 0
