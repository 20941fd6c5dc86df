"""Small parts of hosts: reports, lease, progress, preloading, what may be pickled, the marks of @rpc."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from life_kit import context, info, role_of

import dljob
from dljob import RoleGroup, UsageError, current_worker, progress, rpc
from dljob.api.logs import find_logs
from dljob.master.state.actions import RankStart
from dljob.master.state.views import Outcome
from dljob.runtime.process import context as process_context
from dljob.runtime.process import preload, wire
from dljob.runtime.process.context import install
from dljob.runtime.process.guard import Lease, asleep_together, boot_id, suspended
from dljob.runtime.process.logfile import error_file, open_log, redirect_output
from dljob.runtime.process.worker_context import ProgressCounter, Stopping
from dljob.runtime.rpc.rpc import RpcMark, mark_of
from dljob.runtime.rpc.server import RpcServer
from dljob.runtime.worker.reports import Reports


def in_thread(function, *args):
    """Start a call in a thread; its box is filled when it returns."""
    box = []
    thread = threading.Thread(target=lambda: box.append(function(*args)), daemon=True)
    thread.start()
    return box, thread


def waits(reports: Reports, epoch: int, acked: int):
    """A watch that is surely waiting."""
    before = reports._turn
    box, thread = in_thread(reports.watch, epoch, acked)
    with reports._changed:
        assert reports._changed.wait_for(lambda: reports._turn > before, 10)
    return box, thread


class TestReports:
    def test_watch_waits_and_gets_what_is_newer(self):
        reports = Reports()
        box, thread = waits(reports, 1, 0)
        reports.add(0, 1, 10, None)
        thread.join(10)
        assert [r.seq for r in box[0]] == [1]

    def test_reports_are_kept_until_acknowledged_also_for_the_next_master(self):
        reports = Reports()
        reports.add(0, 1, 10, None)
        reports.add(0, 1, 10, Outcome(ok=True))
        assert [r.seq for r in reports.watch(1, 0)] == [1, 2]
        assert [r.seq for r in reports.watch(1, 1)] == [2]
        assert [r.seq for r in reports.watch(2, 0)] == [2]

    def test_later_call_releases_the_older_one(self):
        reports = Reports()
        box, thread = waits(reports, 1, 0)
        waits(reports, 1, 0)
        thread.join(10)
        assert box == [()]

    def test_newer_master_releases_the_older_ones_call_and_the_older_is_not_heard_again(self):
        reports = Reports()
        box, thread = waits(reports, 1, 0)
        assert reports.accept_epoch(2)
        thread.join(10)
        assert box == [()]
        assert reports.watch(1, 0) == ()
        assert not reports.accept_epoch(1)

    def test_acknowledgement_is_awaited(self):
        reports = Reports()
        seq = reports.add(0, 1, 10, None)
        assert not reports.wait_acked(seq, 0.0)
        box, thread = in_thread(reports.wait_acked, seq, 10.0)
        waits(reports, 1, seq)
        thread.join(10)
        assert box == [True]


class TestLease:
    def test_lease_runs_from_the_time_a_beacon_was_sent(self):
        now = [100.0]
        lease = Lease(5.0, clock=lambda: now[0])
        now[0] = 104.9
        assert not lease.over
        lease.renew(sent_at=103.0)
        now[0] = 107.9
        assert not lease.over
        now[0] = 108.0
        assert lease.over

    def test_late_answer_to_an_early_beacon_shortens_nothing(self):
        now = [0.0]
        lease = Lease(5.0, clock=lambda: now[0])
        lease.renew(sent_at=3.0)
        lease.renew(sent_at=1.0)
        now[0] = 7.9
        assert not lease.over

    def test_a_machine_that_sleeps_alone_wakes_up_to_a_lease_that_is_over(self):
        now = [0.0]
        lease = Lease(5.0, clock=lambda: now[0])
        now[0] = 3600.0
        assert lease.over

    def test_sleep_of_all_machines_together_does_not_count_for_the_lease(self):
        now, asleep = [100.0], [50.0]
        lease = Lease(5.0, clock=lambda: now[0], excused=lambda: asleep[0])
        lease.renew(sent_at=101.0)
        now[0], asleep[0] = 3704.0, 3650.0
        assert not lease.over
        now[0] = 3706.0
        assert lease.over

    def test_what_others_were_answered_for_this_process_counts_when_it_runs_again(self):
        now, answered = [100.0], [None, 137.0, 137.0]
        lease = Lease(30.0, clock=lambda: now[0], answered_at=lambda: answered.pop(0))
        now[0] = 129.9
        assert (lease.over, len(answered)) == (False, 3), "nobody is asked before it is needed"
        now[0] = 141.0  # code held the GIL for 41 s
        assert lease.over
        assert (lease.over, len(answered)) == (False, 1)
        now[0] = 167.0
        assert lease.over, "nobody spoke for it since"

    def test_sleep_counts_as_common_only_on_the_same_boot(self):
        assert len(boot_id()) == 36
        assert asleep_together(boot_id())() == pytest.approx(suspended(), abs=1)
        assert (asleep_together("")(), asleep_together("another")()) == (0.0, 0.0)


class TestProgress:
    def test_only_a_new_step_is_taken_from_the_counter(self):
        steps = ProgressCounter()
        assert steps.take() is None
        steps.put(1, {"a": 1.0})
        steps.put(2, {})
        assert steps.take() == (2, {})
        assert steps.take() is None
        steps.restore()
        assert steps.take() == (2, {})
        assert steps.with_last_step(Outcome(ok=True)) == Outcome(ok=True, step=2)
        steps.put(3, {"loss": 0.5})
        assert steps.with_last_step(Outcome(ok=True)) == Outcome(ok=True, step=3, metrics=(("loss", 0.5),))
        assert ProgressCounter().with_last_step(Outcome(ok=True)) == Outcome(ok=True)

    def test_the_arguments_of_progress_are_checked(self):
        install(context())
        try:
            progress(3, loss=1)
            with pytest.raises(TypeError, match="must be an integer, got float"):
                progress(1.5)
            with pytest.raises(TypeError, match=r"progress\(loss=\.\.\.\): a metric must be a number, got str"):
                progress(1, loss="low")
        finally:
            install(None)

    def test_progress_without_a_step_counts_the_work_of_each_process_from_one(self, monkeypatch):
        monkeypatch.setattr(process_context, "_work_numbers", (0, itertools.count(1)))
        reported, noted = [], []
        try:
            for incarnation in (1, 2):
                install(
                    context(
                        incarnation=incarnation,
                        report=lambda *args: reported.append(args),
                        note=lambda *args: noted.append(args),
                    )
                )
                progress(loss=1)
                progress()
        finally:
            install(None)
        assert reported == [(1, {"loss": 1.0}), (2, {})] * 2
        assert noted == [("counted", 1)] * 2

    def test_functions_of_a_job_called_outside_of_one_say_so(self, monkeypatch):
        monkeypatch.delenv("DLJOB_HOST_SOCKET", raising=False)
        with pytest.raises(UsageError, match="no rank of a DLJob"):
            current_worker()
        with pytest.raises(UsageError, match="no rank of a DLJob"):
            RoleGroup("actor")


def test_stopping_is_true_once_it_is_ordered_and_keeps_its_first_reason():
    stopping = Stopping()
    assert not stopping
    stopping.order("first")
    stopping.order("second")
    assert stopping
    assert stopping.reason == "first"


class TestMarks:
    def test_marks_are_inherited_and_options_kept(self):
        class Base:
            @rpc
            def a(self): ...

            @rpc(idempotent=True, concurrency=2)
            def b(self): ...

        class Derived(Base):
            def a(self): ...

            def c(self): ...

        assert mark_of(Derived, "a") == RpcMark()
        assert mark_of(Derived, "b") == RpcMark(idempotent=True, concurrency=2)
        assert mark_of(Derived, "c") is None
        assert mark_of(Derived, "d") is None

    @pytest.mark.parametrize("concurrency", [0, -1, True])
    def test_bad_concurrency_is_refused(self, concurrency):
        with pytest.raises(UsageError, match="whole number from 1"):
            rpc(concurrency=concurrency)

    def test_rpc_is_refused_on_anything_but_a_method(self):
        with pytest.raises(UsageError, match="goes on a method"):
            rpc(3)

    @pytest.mark.parametrize("name", ["stream", "map", "call", "call_batch", "call_rank0", "options", "role", "rank"])
    def test_rpc_is_refused_on_a_method_that_no_caller_could_reach(self, name):
        def method(self):
            return 1

        method.__name__ = name
        with pytest.raises(UsageError, match=f"could not reach a method named {name}\n.* {name} of their own"):
            rpc(method)
        method.__name__ = f"{name}s"
        assert rpc(timeout=3)(method) is method

    @pytest.mark.parametrize(
        ("options", "words"),
        [({"timeout": 0}, "seconds above 0"), ({"timout": 1}, "unknown option"), ({"timeout": -1}, "seconds above 0")],
    )
    def test_the_options_of_rpc_are_checked(self, options, words):
        install(context(peers={"w": 2}))
        try:
            with pytest.raises(UsageError, match=words):
                RoleGroup("w").options(**options)
        finally:
            install(None)


class TestWire:
    def test_part_that_cannot_be_pickled_is_named(self):
        with pytest.raises(wire.WireError, match=r"call: b, a _thread.lock, cannot be pickled"):
            wire.dump(((1,), {"b": threading.Lock()}), "call", (("a", 1), ("b", threading.Lock())))

    def test_packed_values_come_back_as_they_were(self):
        assert wire.load(wire.dump({"a": (1, [2])}, "x")) == {"a": (1, [2])}


def test_callee_that_never_came_up_refuses_calls():
    from dljob.runtime.process.messages import Call, NotRun

    callee = RpcServer("w")
    callee.close(Outcome(ok=False, message="no model"))
    reply = callee.answer(Call("1", 0, 1, "x", None, "y"), b"")
    assert reply.refused is NotRun.ENDED
    assert "ended: no model" in reply.message


class TestPreload:
    @pytest.fixture
    def code(self, tmp_path):
        (tmp_path / "pkg").mkdir()
        (tmp_path / "pkg" / "__init__.py").write_text("")
        (tmp_path / "pkg" / "train.py").write_text("from . import model\n\nclass T: ...\n")
        (tmp_path / "pkg" / "model.py").write_text("try:\n    import torch.nn\nexcept ImportError: ...\n")
        (tmp_path / "lazy.py").write_text(
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import torch\n"
        )
        (tmp_path / "broken.py").write_text("import (\n")
        return str(tmp_path)

    @pytest.mark.parametrize(
        ("entrypoint", "there"),
        [
            (("class", "pkg.train.T"), True),
            (("module", "pkg.train"), True),
            (("module", "pkg/model.py"), True),
            (("class", "lazy.f"), False),
            (("class", "broken.f"), False),
            (("class", "not_there.f"), False),
            (("command", "python", "pkg/model.py"), False),
        ],
    )
    def test_torch_is_found_where_importing_the_code_imports_it(self, code, entrypoint, there):
        assert ("torch" in preload.imported(entrypoint, code)) is there

    @pytest.mark.parametrize(
        ("line", "there"),
        [
            ("opt = torch.optim.Adam", True),
            ("from torch import nn, optim", True),
            ("from torch.optim import Adam", True),
            ("import torch.optim", True),
            ("def f(net):\n    return torch.optim.SGD(net)", True),
            ("from torch import nn  # no optim", False),
            ("optimum = 1", False),
        ],
    )
    def test_what_an_optimizer_imports_is_there_where_the_code_names_one(self, code, line, there):
        Path(code, "pkg", "model.py").write_text(f"import torch\n{line}\n")
        wanted = ("torch", *["torch._dynamo"] * there)
        assert preload.modules(role_of("pkg.train.T"), code) == wanted

    def test_first_optimizer_imports_nothing_more(self):
        program = (
            "import importlib, sys\nfrom dljob.runtime.process import preload\nimport torch\n"
            "for name in preload.OF_OPTIMIZERS: importlib.import_module(name)\n"
            "before = set(sys.modules)\ntorch.optim.Adam(torch.nn.Linear(1, 1).parameters())\n"
            "print(len(set(sys.modules) - before))"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
        assert int(done.stdout) == 0

    def test_role_with_a_store_needs_it_anyway(self, code):
        role = role_of("lazy.f", elastic=True, comm_backend="gloo")
        assert preload.modules(role, code) == ("torch", "torch.distributed")
        assert preload.modules(role_of("lazy.f"), code) == ()


def test_importing_dljob_and_what_scripts_use_loads_neither_ray_nor_torch():
    code = (
        "import sys, dljob; dljob.Worker, dljob.RoleGroup, dljob.progress, dljob.current_worker; "
        "import dljob.runtime.process.rank_link, dljob.runtime.worker.forkserver; "
        "print([m for m in ('ray', 'torch', 'pydantic', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_public_names_all_resolve():
    for name in dljob.__all__:
        assert getattr(dljob, name) is not None
    assert set(dljob.__all__) <= set(dir(dljob))
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        _ = dljob.Wroker


class TestLogFile:
    def test_incarnations_append_to_one_private_file(self, tmp_path):
        for incarnation, reason in ((1, ""), (2, "SIGKILL")):
            fd, path = open_log(info(tmp_path), "w", RankStart(3, incarnation, 0, 1, 0, reason))
            os.write(fd, b"said\n")
            os.close(fd)
        log = tmp_path / "logs" / "w-3.log"
        assert path == str(log)
        assert log.stat().st_mode & 0o077 == 0
        lines = log.read_text().splitlines()
        assert lines[0].endswith("w/3 starts, incarnation 1")
        assert lines[2].endswith("w/3 starts, incarnation 2, after: SIGKILL")
        assert lines[1] == lines[3] == "said"
        errors = {error_file(path, incarnation) for incarnation in (1, 2)}
        assert errors == {str(log.with_name(f"w-3.{incarnation}.error.json")) for incarnation in (1, 2)}
        assert [*find_logs(tmp_path)] == [log], "an error file is no log"

    def test_folder_that_cannot_be_written_to_is_said_and_changes_nothing(self, tmp_path, capsys):
        (tmp_path / "logs").write_text("a file where the folder should be")
        fd, path = open_log(info(tmp_path), "w", RankStart(0, 1, 0, 1, 0))
        redirect_output(fd)
        assert (fd, path, error_file(path, 1)) == (-1, "", "")
        assert "the output stays in Ray's log" in capsys.readouterr().err
