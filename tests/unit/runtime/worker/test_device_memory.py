"""A rank with a share of a GPU is held to that share of its memory, once it uses CUDA and not before."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest
from fork_kit import Server

from dljob.runtime.process.preload import Preload
from dljob.runtime.worker.device_memory import CUDA, DeviceMemoryLimit


class FakeCuda(ModuleType):
    """`torch.cuda` of a process that has not used it yet, on a machine with `count` devices."""

    def __init__(self, count: int = 4) -> None:
        super().__init__(CUDA)
        self.count = count
        self.queue: list[Callable[[], None]] = []
        self.current = 2
        self.held: list[tuple[float, int, int]] = []

    def _lazy_call(self, call: Callable[[], None]) -> None:
        self.queue.append(call)

    def initialise(self) -> None:
        for call in self.queue:
            call()

    def device_count(self) -> int:
        return self.count

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before, self.current = self.current, index
        yield
        self.current = before

    def set_per_process_memory_fraction(self, share: float, index: int) -> None:
        self.held.append((share, index, self.current))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, CUDA, fake)
    return fake


def test_the_limit_waits_for_the_first_use_of_cuda(cuda, capsys):
    DeviceMemoryLimit().hold(0.4, 3)
    assert (cuda.held, len(cuda.queue)) == ([], 1)
    cuda.initialise()
    assert cuda.held == [(0.4, 3, 3)]
    assert cuda.current == 2, "the device that user code chose"
    assert "torch is held to 0.4 of the memory of GPU 3 (accelerator.memoryLimit)" in capsys.readouterr().err


def test_a_script_that_shows_itself_its_own_device_alone_is_held_on_that(cuda):
    DeviceMemoryLimit().hold(0.4, 3)
    cuda.count = 1
    cuda.initialise()
    assert cuda.held == [(0.4, 0, 0)]


def test_a_restart_in_the_process_says_nothing_new_unless_the_device_is_another(cuda):
    limit = DeviceMemoryLimit()
    for index in (1, 1, 1):
        limit.hold(0.5, index)
    assert len(cuda.queue) == 1
    limit.hold(0.5, 2)
    cuda.initialise()
    assert cuda.held[-1] == (0.5, 2, 2)


def test_a_rank_without_a_share_is_left_alone(cuda):
    before = list(sys.meta_path)
    DeviceMemoryLimit().hold(0.0, 0)
    assert (cuda.queue, sys.meta_path) == ([], before)


HOLDS = """
import sys
from dljob.runtime.worker.device_memory import limit
assert ("torch" in sys.modules) == {before}
assert limit.share == 0.4 and limit.index == 1, vars(limit)
limit.hold(0.4, 1)
import torch
queued = [call for call, _ in torch.cuda._queued_calls]
assert queued.count(limit._apply) == 1, queued
assert not torch.cuda.is_initialized()
assert limit not in sys.meta_path
import importlib.util
assert importlib.util.find_spec("torch.cuda").name == "torch.cuda"
print("held")
"""


@pytest.mark.torch
@pytest.mark.parametrize("before", [False, True], ids=["torch is imported later", "torch is there before"])
def test_torch_itself_queues_the_limit_without_cuda(tmp_path, before):
    pytest.importorskip("torch")
    (tmp_path / "own.py").write_text(HOLDS.format(before=before))
    server = Server(tmp_path, Preload(("torch",)) if before else Preload())
    try:
        ended = server.run("module", "own.py", code_dir=tmp_path, settings={"memory": (0.4, 1)})
        assert (ended["status"], server.log()) == (0, "held\n")
        ended = server.run("command", sys.executable, "-c", "print('no torch')", rank=1, settings={"memory": (0.4, 1)})
        assert (ended["status"], server.log(1)) == (0, "no torch\n")
    finally:
        server.close()
