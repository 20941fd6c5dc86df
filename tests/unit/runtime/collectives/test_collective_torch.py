"""Our own backends: what they compute, that they meet by themselves, and that a wait in them can be ended."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ray.util.collective import types

from dljob.errors import CollectiveError, UsageError
from dljob.runtime.collectives import torch_groups as module
from dljob.runtime.collectives.torch_groups import IsolatedGloo, IsolatedHccl, IsolatedNccl, Meeting, open_store

pytestmark = pytest.mark.torch


@pytest.fixture
def gloo() -> Any:
    """Two members, each in a thread."""
    address, store = open_store()
    module.meetings["w"] = Meeting(address, 60.0)
    with ThreadPoolExecutor(2) as pool:
        groups = list(pool.map(lambda rank: IsolatedGloo(2, rank, "w"), range(2)))
        yield lambda what: list(pool.map(what, groups))
        for group in groups:
            group.destroy_group()
    del module.meetings["w"], store


def options(kind: str, **values: Any) -> Any:
    made = getattr(types, kind)()
    for name, value in values.items():
        setattr(made, name, value)
    return made


def test_arrays_and_tensors_of_any_layout_are_written_in_place(gloo):
    def reduce(group: IsolatedGloo) -> Any:
        array, turned = np.arange(4.0) + group.rank, torch.arange(4.0).reshape(2, 2).t() * (group.rank + 1)
        group.allreduce([array])
        group.allreduce([turned], options("AllReduceOptions", reduceOp=types.ReduceOp.MAX))
        return array.tolist(), turned.tolist()

    assert gloo(reduce) == [([1.0, 3.0, 5.0, 7.0], [[0.0, 4.0], [2.0, 6.0]])] * 2


def test_each_operation_is_as_rays_interface_says(gloo):
    def all_of_them(group: IsolatedGloo) -> Any:
        me = group.rank
        own, sent, part = torch.tensor([float(me + 1)]), np.array([me]), torch.zeros(1)
        outputs = [np.zeros(1), np.zeros(1)]
        group.reduce([own], options("ReduceOptions", root_rank=1, reduceOp=types.ReduceOp.PRODUCT))
        group.broadcast([sent], options("BroadcastOptions", root_rank=1))
        group.allgather([outputs], [np.array([me + 5.0])])
        group.reducescatter([part], [[torch.tensor([1.0]), torch.tensor([2.0])]])
        passed = np.array([me])
        if me:
            group.recv([passed], options("RecvOptions", src_rank=0))
        else:
            group.send([np.array([9])], options("SendOptions", dst_rank=1))
        group.barrier()
        return own.item(), sent[0], [each[0] for each in outputs], part.item(), passed[0]

    assert gloo(all_of_them) == [(1.0, 1, [5.0, 6.0], 2.0, 0), (2.0, 1, [5.0, 6.0], 4.0, 9)]


def frozen() -> Any:
    made = np.ones(2)
    made.flags.writeable = False
    return made


WRITING: dict[str, Callable[[IsolatedGloo, Any], None]] = {
    "allreduce": lambda group, each: group.allreduce([each]),
    "reduce": lambda group, each: group.reduce([each], options("ReduceOptions", root_rank=group.rank)),
    "broadcast": lambda group, each: group.broadcast([each], options("BroadcastOptions", root_rank=1 - group.rank)),
    "allgather": lambda group, each: group.allgather([[np.ones(2), each]], [np.ones(2)]),
    "reducescatter": lambda group, each: group.reducescatter([each], [[np.ones(2)] * 2]),
    "recv": lambda group, each: group.recv([each], options("RecvOptions", src_rank=1 - group.rank)),
}


@pytest.mark.parametrize("name", WRITING)
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (frozen, "a NumPy array that is read-only"),
        (lambda: np.float64(1.0), "a float64"),
        (lambda: [1.0, 2.0], "a list"),
    ],
)
def test_an_operand_that_cannot_be_written_is_refused_and_unchanged(gloo, name, make, said):
    def refused(group: IsolatedGloo) -> Any:
        given = make()
        with pytest.raises(UsageError) as caught:
            WRITING[name](group, given)
        assert f"{name}: member {group.rank} of group w gave {said}, which cannot be written into" in str(caught.value)
        assert "array.copy()" in caught.value.hint
        return np.array_equal(given, make())

    assert gloo(refused) == [True, True]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # it is only read
def test_an_operand_that_is_only_read_may_be_anything_torch_reads(gloo):
    def reads(group: IsolatedGloo) -> Any:
        me = group.rank
        sent, reduced, part = frozen() if me else np.zeros(2), np.ones(2), np.zeros(2)
        outputs = [np.zeros(2), np.zeros(2)]
        group.broadcast([sent], options("BroadcastOptions", root_rank=1))
        group.reduce([reduced if me else frozen()], options("ReduceOptions", root_rank=1))
        group.allgather([outputs], [frozen()])
        group.reducescatter([part], [[frozen(), frozen()]])
        if me:
            group.send([frozen()], options("SendOptions", dst_rank=0))
        else:
            group.recv([reduced], options("RecvOptions", src_rank=1))
        return [each.tolist() for each in (sent, reduced, *outputs, part)]

    one, two = [1.0, 1.0], [2.0, 2.0]
    assert gloo(reads) == [[one, one, one, one, two], [one, two, one, one, two]]


def test_a_parameter_of_any_layout_is_written_into(gloo):
    def reduce(group: IsolatedGloo) -> Any:
        turned = torch.nn.Parameter(torch.arange(4.0).reshape(2, 2).t())
        group.allreduce([turned])
        return turned.tolist(), turned.requires_grad

    assert gloo(reduce) == [([[0.0, 4.0], [2.0, 6.0]], True)] * 2


def test_a_wait_for_a_member_that_never_comes_can_be_ended(gloo):
    began = time.monotonic()

    def waits(group: IsolatedGloo) -> str:
        if group.rank:
            return ""
        threading.Timer(0.1, group.abort).start()
        with pytest.raises(RuntimeError) as caught:
            group.allreduce([np.ones(1)])
        return str(caught.value)

    assert gloo(waits)[0]
    assert time.monotonic() - began < 30


def test_two_groups_are_apart_and_the_default_one_does_not_matter(gloo):
    address, store = open_store()
    module.meetings["x"] = Meeting(address, 60.0)
    alone = IsolatedGloo(1, 0, "x")
    alone.abort()
    del module.meetings["x"], store

    def reduce(group: IsolatedGloo) -> float:
        own = np.ones(1)
        group.allreduce([own])
        return own[0]

    assert gloo(reduce) == [2.0, 2.0]
    assert not torch.distributed.is_initialized()


def test_a_group_that_nobody_declared_has_nowhere_to_meet():
    with pytest.raises(CollectiveError, match=r"IsolatedGloo: group y was not made by dljob.CollectiveGroup"):
        IsolatedGloo(1, 0, "y")


class Work:
    def wait(self) -> None:
        pass


class Device:
    """A process group of a device's library, which adds nothing and keeps what it was given."""

    class Options:
        _timeout: Any = None

    def __init__(self, store: Any, rank: int, size: int, made: Options) -> None:
        self.made = (rank, size, made._timeout.total_seconds())

    def allreduce(self, tensors: Any, how: Any) -> Work:
        tensors[0].add_(1)
        return Work()


@pytest.mark.parametrize(("cls", "kind"), [(IsolatedNccl, "cuda"), (IsolatedHccl, "npu")])
def test_device_tensors_take_the_same_path(cls, kind, monkeypatch):
    inner = ModuleType("torch_npu._C._distributed_c10d")
    inner.ProcessGroupHCCL = Device  # type: ignore[attr-defined]
    for name in ("torch_npu", "torch_npu._C"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, inner.__name__, inner)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Device, raising=False)
    synchronized: list[int] = []
    stream = SimpleNamespace(synchronize=lambda: synchronized.append(1))
    there = SimpleNamespace(current_stream=lambda: stream, is_available=lambda: True)
    monkeypatch.setattr(torch, kind, there, raising=False)
    assert cls.backend() == f"DLJ_{'NCCL' if kind == 'cuda' else 'HCCL'}"
    assert cls.check_backend_availability()
    address, store = open_store()
    module.meetings["d"] = Meeting(address, 5.0)
    group = cls(1, 0, "d")
    del module.meetings["d"], store
    assert group._pg.made == (0, 1, 5.0)
    with pytest.raises(CollectiveError, match=rf"works on tensors of a {kind} device, and this is on cpu"):
        group.allreduce([torch.ones(1)])
    with pytest.raises(CollectiveError, match="and this is on ndarray"):
        group.allreduce([np.ones(1)])
    monkeypatch.setattr(cls, "KIND", "cpu")
    monkeypatch.setattr(torch, "cpu", there)
    tensor = torch.ones(1)
    group.allreduce([tensor])
    assert (tensor.item(), synchronized) == (2.0, [1])
    group.abort()
    with pytest.raises(RuntimeError, match="aborted"):
        group.allreduce([tensor])


def test_a_backend_without_its_library_or_device_is_not_available(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert not IsolatedHccl.check_backend_availability()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not IsolatedNccl.check_backend_availability()
