"""An exception that leaves any task of PrimeMaster or the gateway ends the job, or is survived, and is in the log.

The tasks are those of the source: each literal kind that is given to a `TaskOwner`.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sources
from master_shell_kit import FIRST, UID, World, ended, running, until

from dljob import ray_private, tasks
from dljob.master.state import actions as ac
from dljob.master.state import events as ev
from dljob.master.state.views import HostId, Outcome
from dljob.master.state.waits import WaitFinding
from dljob.plan.witnesses import DumpPlan, WitnessPlan
from dljob.runtime.controller import prime, worker_hosts
from dljob.runtime.controller.executor import Executor
from dljob.runtime.controller.group_rendezvous import GroupRendezvous
from dljob.runtime.controller.hang_watch import HangWatch
from dljob.runtime.controller.master_loop import MasterLoop, MasterOverError
from dljob.runtime.controller.peers import ParkedCalls
from dljob.runtime.controller.services import shard_service
from dljob.runtime.controller.services.holder_ends import HolderEnds
from dljob.runtime.controller.slowness_watch import SlownessWatch
from dljob.runtime.controller.stack_collector import PeerWatch
from dljob.runtime.controller.stall_watch import StallWatch
from dljob.runtime.job import gateway, gateway_app, gateway_jobs
from dljob.runtime.journal.job_record import MasterOrder
from dljob.runtime.journal.stores import FileStore
from dljob.tasks import TaskOwner

ROOT = Path(__file__).parents[4]
RUNTIME = ROOT / "workers/dljob/runtime"
ORDERED = (ac.LeaveGroup, ac.LoadWeights, ac.HoldCalls, ac.RelaunchNode, ac.Release, ac.SaveCopies, ac.StopRanks)
EXECUTED = ("Reserve", "StartRanks", *(kind.__name__ for kind in ORDERED))
MAKERS = {
    "operator/dljob_operator/app.py watch": "awaited; its result is taken",
    "operator/dljob_operator/app.py _ended_or_hangs": "waits for an event, which cannot fail; cancelled after",
    "operator/dljob_operator/app.py spawn": "an owner: an exception ends the operator, in the log",
    "operator/dljob_operator/controller/controller.py run": "of a TaskGroup: an exception ends all passes and the lead",
    "operator/dljob_operator/leader/lease.py run": "awaited between the rounds of the Lease, and at the end",
    "operator/dljob_operator/controller/poller.py follow": "an owner: an exception is logged, and the head asked later",
    "operator/dljob_operator/testing/simulated_operator.py __init__": "an operator that ends by itself is reported",
    "operator/dljob_operator/testing/simulated_operator.py _live": "of a TaskGroup: an exception ends the operator",
    "operator/dljob_operator/webhook/process.py start": "awaited by who asks; one that failed is made anew",
    "workers/dljob/api/kubernetes/fault_means.py _strike_ranks": "of a TaskGroup: an exception ends the fault",
    "workers/dljob/api/kubernetes/logs.py _read_ahead": "awaited by whoever prints that rank, or at the end",
    "workers/dljob/cli/commands/observe/open.py _serve": "its end is told on the terminal, with its exception",
    "workers/dljob/report/live/feed.py run": "awaited as soon as it has ended; cancelled after",
    "workers/dljob/cli/kubernetes/run.py follow": "both are awaited; its result is taken",
    "workers/dljob/runtime/job/create_master.py create": "awaited; taken back where its maker is cancelled",
    "workers/dljob/runtime/controller/checking.py _checker": "awaited, and again at the end of the round",
    "workers/dljob/runtime/controller/checking.py _meet": "awaited; each exception is a finding",
    "workers/dljob/runtime/controller/node_watch.py _ask": "awaited",
    "workers/dljob/runtime/controller/standby.py _ask_unless_ended": "awaited; cancelled where the process has ended",
    "workers/dljob/runtime/controller/standby.py started": "waits for an event, which cannot fail; cancelled after",
    "workers/dljob/runtime/backend/masters.py call_commander": "awaited; cancelled where another master commands",
    "workers/dljob/runtime/queues/keeper.py _open_store": "awaited; what failed is made anew by who asks next",
    "workers/dljob/runtime/rpc/kept_answers.py answer": "each call that waits for it has its exception",
    "workers/dljob/runtime/serving/monitor.py _begin": "an exception is logged; the rank's next process is probed anew",
    "workers/dljob/runtime/serving/monitor.py _watch": "of a TaskGroup: an exception is one of the task of `_begin`",
    "workers/dljob/tasks.py start": "the owner itself",
}
"""Where a task is made without a `TaskOwner`, and who hears of its exception."""


@cache
def functions() -> tuple[tuple[str, str, tuple[ast.Call, ...]], ...]:
    """(file, function, calls of methods in it) of all functions of the runtime that start a task."""
    found: list[tuple[str, str, tuple[ast.Call, ...]]] = []
    for path in RUNTIME.rglob("*.py"):
        if not re.search(r"create_task|ensure_future|TaskOwner|shell\.tasks", text := path.read_text()):
            continue
        for function in sources.nodes(text):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside = (node for node in ast.walk(function) if isinstance(node, ast.Call))
                found.append((path.name, function.name, tuple(c for c in inside if isinstance(c.func, ast.Attribute))))
    return tuple(found)


def calls(*names: str) -> list[tuple[str, str, ast.Call]]:
    """(file, function, call) of each call of a method of these names."""
    return [
        (path, function, call)
        for path, function, inside in functions()
        for call in inside
        if isinstance(call.func, ast.Attribute) and call.func.attr in names
    ]


def kinds() -> list[str]:
    """The kinds of tasks that have an owner."""
    found: set[str] = set()
    for _, _, call in calls("start", "repeat", "_begin"):
        match call.args:
            case [ast.Constant(value=str(kind)), _, *_]:
                found.add(kind)
            case [ast.JoinedStr(values=[ast.Constant(value=str(first)), *_]), _, *_]:
                found |= {f"{first}{action}" for action in EXECUTED}
            case _:
                pass
    return sorted(found)


def makers() -> set[str]:
    """Each function of the product that makes a task itself, after its file."""
    found: set[str] = set()
    for path in (*(ROOT / "workers").rglob("*.py"), *(ROOT / "operator").rglob("*.py")):
        if not re.search(r"create_task|ensure_future", text := path.read_text()):
            continue
        for function in sources.nodes(text):
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                inside = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
                names = {getattr(called, "attr", getattr(called, "id", "")) for called in inside}
                if names & {"create_task", "ensure_future"}:
                    found.add(f"{path.relative_to(ROOT)} {function.name}")
    return found


def test_every_task_of_the_product_has_an_owner_or_somebody_who_hears_of_its_end():
    assert makers() == MAKERS.keys()


def test_the_executed_actions_are_those_of_the_executor(tmp_path):
    async def names() -> set[str]:
        world = World(tmp_path)
        found = {kind.__name__ for kind in world.master().executor._works} | {"Reserve", "SaveCopies"}
        world.close()
        return found

    assert asyncio.run(names()) == set(EXECUTED)


class Plant:
    """Raises in the first task of a kind, at its first run."""

    def __init__(self, patch: pytest.MonkeyPatch, kind: str) -> None:
        self.kind, self.armed, self.fired = kind, True, False
        start, repeat = TaskOwner.start, TaskOwner.repeat

        async def wrong() -> None:
            self.fired = True
            raise KeyError("planted")

        def started(owner: TaskOwner, kind: str, work: Coroutine[Any, Any, Any], *more: Any) -> Any:
            if kind == self.kind and self.armed:
                self.armed = False
                work.close()
                work = wrong()
            return start(owner, kind, work, *more)

        def repeated(owner: TaskOwner, kind: str, work: Callable[[], Any], *more: Any, **options: Any) -> Any:
            if kind == self.kind and self.armed:
                self.armed = False
                first = [wrong]
                return repeat(owner, kind, lambda: first.pop()() if first else work(), *more, **options)
            return repeat(owner, kind, work, *more, **options)

        patch.setattr(TaskOwner, "start", started)
        patch.setattr(TaskOwner, "repeat", repeated)


def end_ranks(world: World, shell: MasterLoop) -> None:
    """End all ranks well, each in the incarnation that it is in, whatever its actor's number."""
    for (role, rank), own in shell.state.ranks.items():
        actor = shell.state.hosts[HostId(role, rank)].actor
        world.host(actor).report(rank, own.incarnation, Outcome(ok=True, result="7"))


async def lose_a_host(_: World, shell: MasterLoop) -> None:
    watched = shell.executor.hosts._watched[FIRST]
    watched.task.cancel()  # type: ignore[union-attr]

    async def wrong() -> None:
        raise KeyError("planted")

    shell.executor.hosts._follow(watched, wrong())


def order(kind: type) -> Callable[[World, MasterLoop], Coroutine[Any, Any, None]]:
    """Have the executor begin an action; what it says does not matter, as its task raises at once."""

    async def scene(_: World, shell: MasterLoop) -> None:
        shell.executor._begin(object.__new__(kind))

    return scene


async def check_nodes(_: World, shell: MasterLoop) -> None:
    shell.executor._checks.begin(ac.CheckNodes("worker", 1, (), ()))


async def inquire_after_a_hang(_: World, shell: MasterLoop) -> None:
    watch = HangWatch(shell.setup, shell.backend, shell.offer, lambda: shell.state, {}, owner=shell.tasks)
    watch._inquire("worker", watch._look_at("worker"))


async def inquire_after_a_stall(_: World, shell: MasterLoop) -> None:
    where = (shell.setup, shell.backend, shell.offer, lambda: shell.state, shell.heartbeats)
    watch = StallWatch(*where, owner=shell.tasks, now=shell.now)
    finding = WaitFinding("r/0 1 c", "", 0.0, (("worker", 0),), ("worker", 0), 1, is_restartable=True, silence=1e9)
    watch._look_at(shell.state, finding)


async def look_at_silent_ranks(_: World, shell: MasterLoop) -> None:
    where = (shell.setup, shell.backend, shell.offer, lambda: shell.state, shell.heartbeats)
    watch = StallWatch(*where, owner=shell.tasks, now=shell.now)
    watch._ask_why_silent(shell.state, [("worker", 0)], shell.now())


async def inquire_after_slowness(_: World, shell: MasterLoop) -> None:
    where = (shell.backend, shell.offer, lambda: shell.state, shell.heartbeats)
    watch = SlownessWatch(*where, owner=shell.tasks, now=shell.now)
    watch._look(shell.state, {"worker": 0.1}, shell.now())


async def look_at_peers(_: World, shell: MasterLoop) -> None:
    where = (shell.setup, shell.backend, shell.offer, lambda: shell.state, shell.now)
    watch = PeerWatch(*where, owner=shell.tasks)
    shell.tasks.start("look at peers", watch._look("worker", (0,)), tasks.nobody_waits)


async def report_ends(_: World, shell: MasterLoop) -> None:
    report = HolderEnds(shell)._report("samples", {})
    shell.tasks.start("ends of holders for a queue", report, tasks.nobody_waits)


async def show_a_stall_of_the_journal(_: World, shell: MasterLoop) -> None:
    shell._on_stall()


async def ask_a_clue(_: World, shell: MasterLoop) -> None:
    shell.executor.hosts._inquiry.begin(HostId("worker", 0), "n1", 4711, None)


async def end_an_actor(_: World, shell: MasterLoop) -> None:
    shell.executor.hosts._end_beside("01234567/nobody")


async def watch_a_start(_: World, shell: MasterLoop) -> None:
    waiting = worker_hosts._wait_for_failed_start({}, {}, [], asyncio.timeout(1))
    shell.tasks.start("watch of a worker's start", waiting, tasks.nobody_waits)


async def release_later(_: World, shell: MasterLoop) -> None:
    shell.executor._release_later("worker/0", "01234567/worker/0/9")


async def release_leftovers(_: World, shell: MasterLoop) -> None:
    shell.tasks.repeat("release of leftovers", shell._release_leftovers)


async def end_a_savers_agent(_: World, shell: MasterLoop) -> None:
    shell.nodes._begin("end of a saver's agent", lambda: shell.nodes._kill_saver_agent("n1"))


async def dump(_: World, shell: MasterLoop) -> None:
    plan = WitnessPlan("w", 1, "/", "m", "Hang", above=True, value=0.0, dump=DumpPlan(2, "/"))
    shell.witnesses.plans = (plan,)
    shell.witnesses.dump("worker", "worker-0-1")


async def tell_sizes(_: World, shell: MasterLoop) -> None:
    shell.executor.tell_sizes(["01234567/nobody"])


async def reap(world: World, shell: MasterLoop) -> None:
    await until(lambda: shell.nodes._refs)
    (agent,) = shell.nodes._refs.values()
    shell.nodes._begin("reaping of processes", lambda: shell.nodes._reap(agent, "worker", {0: 2}))


async def meet(_: World, shell: MasterLoop) -> None:
    desk = GroupRendezvous(shell.tasks)
    question = {"group": "g", "me": ["worker", 0, 1], "epoch": 0, "round": 1, "offer": "", "met": False, "busy": False}
    assert "no group" in str(await desk.answer(shell, question))
    desk._tell()


async def want_shards(_: World, shell: MasterLoop) -> None:
    run = {"attempt": 1, "number": 1}
    data = {"name": "d", "size": 8, "shard": 8, "epochs": 1, "world": "worker", "role": "worker", "run": run}
    asked = {**data, "incarnation": 1, "saves": False, "done": (), "want": 1, "wait": True}
    waits: shard_service.Waits = {}
    assert (await shard_service.answer(shell, {**asked, "rank": 0}, waits))["runs"]
    assert (await shard_service.answer(shell, {**asked, "rank": 1}, waits))["again"]


async def park_a_call(_: World, shell: MasterLoop) -> None:
    parked = ParkedCalls(shell.tasks)
    with pytest.raises(KeyError, match="planted"):
        await parked.ready(lambda: shell.state, shell.changed, ("worker", 0), after=10**6)


SCENES: dict[str, Callable[[World, MasterLoop], Coroutine[Any, Any, None]]] = {
    "dump of a witness": dump,
    "end of a saver's agent": end_a_savers_agent,
    "end of an actor": end_an_actor,
    "evidence inquiry": ask_a_clue,
    **{f"execution of {kind.__name__}": order(kind) for kind in ORDERED},
    "ends of holders for a queue": report_ends,
    "group rendezvous": meet,
    "hang inquiry": inquire_after_a_hang,
    "look at peers": look_at_peers,
    "look at silent ranks": look_at_silent_ranks,
    "loss of a host": lose_a_host,
    "news of a data set": want_shards,
    "news of a group rendezvous": meet,
    "node checks": check_nodes,
    "parked calls": park_a_call,
    "reaping of processes": reap,
    "release of a reservation": release_later,
    "release of leftovers": release_leftovers,
    "sizes": tell_sizes,
    "slowness inquiry": inquire_after_slowness,
    "stall inquiry": inquire_after_a_stall,
    "stall of the journal": show_a_stall_of_the_journal,
    "watch of a worker's start": watch_a_start,
}
"""How a task begins that a running job does not have by itself."""
OF_ACTORS = {
    *("PrimeMaster", "control socket", "preStop listener", "gateway", "copy of weights", "question by a line"),
    "chain of weights",
    *("standby", "announcement", "journal ahead", "end of the stopped PrimeMaster", "count of failed starts"),
}
"""Tasks of the actors themselves, which have tests of their own: a standby's in `test_standby.py`, a question's in
`test_version_lines.py`."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "FIRST_S", 0.001)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    yield (made := World(tmp_path))
    made.close()


@pytest.mark.parametrize("kind", sorted(set(kinds()) - OF_ACTORS))
async def test_an_exception_in_a_task_ends_the_job_or_is_survived_and_is_logged(world, kind, monkeypatch, caplog):
    plant = Plant(monkeypatch, kind)
    shell = world.master()
    over = world.masters[-1][1]
    await until(lambda: running(shell)() or over.done())
    if not over.done() and kind in SCENES:
        await SCENES[kind](world, shell)
    await until(lambda: plant.fired)
    for _ in range(20):
        await asyncio.sleep(0)
    await until(lambda: shell._failure is not None or running(shell)() or over.done())
    if shell._failure is None and not over.done():
        end_ranks(world, shell)
    status = await ended(world)
    survived = (status["phase"], status["reason"]) == ("Succeeded", "Completed")
    told = (status["phase"], status["reason"]) == ("Failed", "MasterFailed") and "planted" in status["message"]
    assert survived or told, status
    assert any(kind in record.getMessage() and "planted" in str(record.exc_info) for record in caplog.records)


def test_each_scene_is_of_a_kind_of_task():
    assert set(kinds()) >= SCENES.keys() | OF_ACTORS


async def test_a_prime_master_that_cannot_handle_its_own_error_ends_its_process(monkeypatch, caplog):
    """Ray then makes the next one, which replays the journal."""
    ends: list[tuple[int, str]] = []
    monkeypatch.setattr(prime, "_end", lambda code, why: ends.append((code, why)))
    Plant(monkeypatch, "PrimeMaster")
    made = prime.MasterServer(MasterOrder(uid=UID, dir="", namespace="", backend="", options={}, code_dir=""))
    await until(lambda: ends)
    assert ends == [(70, "KeyError: 'planted'")]
    assert made._main.done()
    assert "PrimeMaster ended by an exception" in caplog.text


@pytest.mark.parametrize("kind", ["preStop listener", "control socket"])
async def test_primemasters_listeners_are_opened_again_after_an_error(world, kind, monkeypatch, caplog):
    served, ends = asyncio.Event(), list[int]()

    async def serve(*_: Any) -> None:
        served.set()
        await asyncio.Event().wait()

    async def setup(*_: Any) -> Any:
        return world.setup()

    for name, stand_in in {
        "factory": lambda _: lambda _options: world.backend,
        "_setup": setup,
        "_store": lambda *_: FileStore(world.folder / "journal"),
        "_Guard": lambda _: None,
        "_end": lambda code, _: ends.append(code),
        "ANSWER_S": 0.0,
    }.items():
        monkeypatch.setattr(prime, name, stand_in)

    async def nothing(*_: Any) -> None: ...

    of_pod = kind == "preStop listener"
    monkeypatch.setattr(prime.prestop_listener, "serve", serve if of_pod else nothing)
    monkeypatch.setattr(prime.ControlSocket, "open", nothing if of_pod else serve)
    plant = Plant(monkeypatch, kind)
    made = prime.MasterServer(MasterOrder(uid=UID, dir="", namespace="", backend="", options={}, code_dir=""))
    await until(served.is_set)
    assert plant.fired
    assert f"{kind} ended by an exception; it is started again" in caplog.text
    shell = await made._started_loop
    await until(running(shell))
    end_ranks(world, shell)
    await until(lambda: ends)
    assert shell.status()["phase"] == "Succeeded"
    for task in made._tasks.tasks:
        task.cancel()


async def test_a_gateway_that_breaks_serves_again(monkeypatch, caplog):
    async def serve(*args: Any) -> Any:
        return SimpleNamespace(address=f"{args[3]}:{args[4]}")

    monkeypatch.setattr(gateway_app, "serve", serve)
    monkeypatch.setattr(ray_private, "auth_token", lambda: None)
    monkeypatch.setattr(gateway_jobs, "about", dict)
    monkeypatch.setattr(gateway, "factory", lambda _: lambda _options: None)
    monkeypatch.setattr(gateway, "raylet_pidfd", lambda: None)
    monkeypatch.setattr(gateway, "raise_priority", lambda: None)
    plant = Plant(monkeypatch, "gateway")
    made = gateway.Gateway("10.0.0.1", 8266, "/home")
    assert await made.address() == "10.0.0.1:8266"
    assert plant.fired
    assert "gateway ended by an exception; it is started again" in caplog.text


async def test_an_exception_at_the_beginning_of_an_action_ends_the_job(world, shell, monkeypatch):

    def wrong(*_: Any) -> None:
        raise KeyError("any bug of ours, once")

    monkeypatch.setattr(Executor, "_bring_up_host", wrong)
    kill(world)
    status = await ended(world)
    assert (status["phase"], status["reason"]) == ("Failed", "MasterFailed")
    assert "any bug of ours, once" in status["message"]


def kill(world: World) -> None:
    """Kill a rank's actor."""
    host = world.host()
    host.dead = True
    host.news.set()
    world.backend.hosts.pop(host.name)


@pytest.mark.parametrize("times", [1, 99])
async def test_an_exception_that_the_backend_does_not_translate_is_no_end_of_hearing(world, monkeypatch, caplog, times):
    """Once: the poll is repeated. Again and again: the host is given up, and the rank starts in another one."""
    monkeypatch.setattr(worker_hosts, "RETRY_S", 0.001)
    shell = world.master()
    await until(running(shell))
    call, left = world.backend.call, [times]

    async def wrong(ref: Any, method: str, *args: Any) -> Any:
        if ref.name == FIRST and method == "watch" and left[0]:
            left[0] -= 1
            raise RuntimeError("Failed to connect to GCS")
        return await call(ref, method, *args)

    monkeypatch.setattr(world.backend, "call", wrong)
    world.host().report(0, 0, None)  # the present poll returns, and the next one raises
    await until(lambda: left[0] < times)
    if times > 1:
        await until(lambda: shell.state.ranks["worker", 0].incarnation == 2)
    await until(running(shell))
    end_ranks(world, shell)
    status = await ended(world)
    assert (status["phase"], status["restarts"]["process"]) == ("Succeeded", int(times > 1))
    assert "Failed to connect to GCS" in caplog.text


async def test_a_caller_waiting_for_the_journal_hears_of_the_masters_error(world, shell):
    shell._troubled(KeyError("planted"))
    with pytest.raises(MasterOverError, match="planted"):
        await shell.offer(ev.Commanded("c", "restart", "worker/0", "me", 0))
    await ended(world)
    with pytest.raises(MasterOverError, match="planted"):
        await shell.offer(ev.Commanded("d", "restart", "worker/0", "me", 0))
