"""Waits in torch's groups as a process sees its own: two real ranks on gloo, of which one is late."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import textwrap
import weakref

import pytest

from dljob.runtime.process.torch_groups import IdleTime, TorchGroups, _local, _runs

RANK = """
import json, os, sys, threading, time
import torch, torch.distributed as dist
from dljob.runtime.process.outcome import is_users
from dljob.runtime.process.torch_groups import IdleTime, TorchGroups

folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", 2), rank=rank, world_size=2)
group = dist.new_group([0, 1], group_desc="dp")
store = dist.distributed_c10d._get_default_store()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
tensor, main, seen, late = torch.ones(1), threading.main_thread().ident, {}, ""
for _ in range(6):
    dist.all_reduce(tensor, group=group)

def watch():
    groups, idle = TorchGroups(), IdleTime()
    while True:
        now, frames, frame = time.monotonic(), [], sys._current_frames()[main]
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        idle.look(now)
        groups.look(now, is_idle=idle.since is not None)
        wait = groups.wait(main, frames, lambda frame: is_users(frame.f_code.co_filename, ""), now)
        if wait is not None and now - wait.since > 0.9 and late:
            seen[late] = [wait.group, wait.call, wait.usual[0], wait.ranks]
        time.sleep(0.1)

if rank == 0:
    threading.Thread(target=watch, daemon=True).start()

def reached(name):
    global late
    dist.barrier()
    late = name
    if rank == 1:
        time.sleep(2.0)
        late = ""

reached("collective")
dist.all_reduce(tensor, group=group)
reached("objects")
dist.all_gather_object([None, None], 1)
reached("work")
work = dist.all_reduce(tensor, group=group, async_op=True)
work.wait()
reached("backward")
loss = model(torch.ones(2)).sum()
loss.backward()
reached("store")
store.set("mine", "1") if rank else store.wait(["mine"])
reached("sleep")
time.sleep(1.5)
late = ""
dist.barrier()
if rank == 0:
    print(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[object]]:
    """What rank 0 sees of itself while rank 1 is late; name of the wait -> group, call, count, ranks."""
    folder = tmp_path_factory.mktemp("groups")
    script = folder / "train.py"
    script.write_text(textwrap.dedent(RANK))
    path = os.pathsep.join(sys.path)
    environment = {**os.environ, "PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), str(folder)]
    with contextlib.ExitStack() as running:
        ranks = [
            running.enter_context(
                subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
            )
            for rank in (0, 1)
        ]
        for process in ranks:
            running.callback(process.kill)
        printed, _ = ranks[0].communicate(timeout=110)
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize(
    ("wait", "group", "call"),
    [
        ("collective", "dp", "all_reduce"),
        ("objects", "default_pg", "all_gather_object"),
        ("work", "dp", "wait"),
        ("backward", "default_pg", "backward"),
        ("store", "the store", "wait"),
    ],
)
def test_a_wait_for_a_late_rank_is_seen_with_its_group(seen, wait, group, call):
    name, function, count, ranks = seen[wait]
    assert (name, function, ranks) == (group, call, [[0, 2, 1]])
    assert isinstance(count, int)
    assert count > 5


def test_a_rank_that_sleeps_waits_for_no_group(seen):
    assert "sleep" not in seen


def test_a_process_without_a_group_waits_for_none(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch.distributed.distributed_c10d", raising=False)
    groups = TorchGroups()
    assert groups.look(1.0, is_idle=True) == 0
    assert groups.wait(1, [sys._getframe()], lambda _: True, 1.0) is None


@pytest.mark.parametrize(
    "ranks", [(), (0,), (0, 1, 2, 3), (0, 8, 16), (0, 1, 4, 5, 8, 9), tuple(range(0, 4096, 8)), (3, 1024, 7000)]
)
def test_ranks_of_a_group_are_told_in_runs(ranks):
    runs = _runs(ranks)
    assert [rank for run in runs for rank in range(*run)] == list(ranks)
    assert len(runs) <= max(1, (len(ranks) + 1) // 2)


def test_a_process_is_idle_from_the_last_look_at_which_it_worked(monkeypatch):
    cpu = iter([0.0, 1.0, 1.0, 1.01, 3.0])
    monkeypatch.setattr("time.process_time", lambda: next(cpu))
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    idle = IdleTime()
    seen = []
    for now in (102.0, 104.0, 106.0, 108.0):
        idle.look(now)
        seen.append(idle.since)
    assert seen == [None, 102.0, 102.0, None]


def test_a_process_whose_children_work_is_idle_alone_and_works_with_them(monkeypatch):
    children = iter([5.0, 7.0, 7.0, 7.0])
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    monkeypatch.setattr("dljob.runtime.process.torch_groups.descendants_cpu_s", lambda: next(children))
    idle, seen = IdleTime(), list[tuple[float | None, float | None]]()
    for now in (102.0, 104.0, 106.0, 108.0):
        idle.look(now)
        seen.append((idle.since, idle.with_children))
    assert seen == [(100.0, 100.0), (100.0, None), (100.0, 104.0), (100.0, 104.0)]


def test_a_name_of_a_frame_is_read_without_keeping_the_others_alive():
    class Large: ...

    def run() -> tuple[object, object]:
        sys._getframe().f_trace = None  # set where coverage is measured, and then the frame keeps its copy
        wanted, large = object(), Large()
        gone = weakref.ref(large)
        found = _local(sys._getframe(), "wanted")
        assert found is wanted
        del large
        return gone(), found

    assert run()[0] is None
    assert _local(sys._getframe(), "missing") is None
