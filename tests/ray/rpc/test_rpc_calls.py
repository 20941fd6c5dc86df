"""Calls between roles: what comes back, what waits, what is refused, and in which words."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from host_kit import eventually
from patience import patience
from rpc_kit import World

from dljob import CallError, CallTimeoutError, PeerLostError, RemoteError, RoleGroup, UsageError
from dljob.runtime.worker.host import Host

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def world(ray_here, tmp_path_factory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("job"), ranks=2)
    made.up(0)
    made.up(1)
    yield made
    made.close()


@pytest.fixture
def alone(ray_here, tmp_path, request) -> Iterator[World]:
    made = World(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


def test_all_ranks_answer_in_the_order_of_ranks(world):
    group = RoleGroup("callee")
    assert len(group) == 2
    assert [answer[0] for answer in group.call("whoami").result(timeout=20)] == [0, 1]
    assert [rank.call("whoami").result(timeout=20)[0] for rank in group] == [0, 1]
    assert group.call_rank0("whoami").result(timeout=20)[0] == 0
    assert group[-1].call("add", 1, b=2).result(timeout=20) == 3
    assert len({answer[2] for answer in group.call("whoami").result(timeout=20)}) == 2


async def test_calls_are_awaitable(world):
    assert await RoleGroup("callee")[0].call("add", 2, 3) == 5
    assert await RoleGroup("callee").call("later", 4) == [8, 8]


def test_calls_from_many_threads_flow_at_once(world):
    group = RoleGroup("callee")
    answers = []
    threads = [threading.Thread(target=lambda i=i: answers.append(group[0].call("add", i).result())) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(answers) == list(range(20))


def test_concurrency_is_kept(world):
    calls = [RoleGroup("callee")[0].call("one_at_a_time") for _ in range(5)]
    assert max(call.result(timeout=20) for call in calls) == 1


def test_large_arguments_arrive(world):
    blob = os.urandom(3_000_000)
    assert RoleGroup("callee").call("echo", blob).result(timeout=30) == [blob, blob]


def test_an_argument_that_needs_cloudpickle_arrives(world):
    assert RoleGroup("callee")[0].call("echo", lambda: 7).result(timeout=20)() == 7


def test_exception_of_the_callee_comes_with_its_traceback(world):
    with pytest.raises(RemoteError) as caught:
        RoleGroup("callee")[1].call("fail").result(timeout=20)
    assert "callee/1.fail raised ValueError: the model said no" in str(caught.value)
    assert (caught.value.role, caught.value.rank) == ("callee", 1)
    assert "callees.py" in caught.value.remote_traceback
    assert "serve.py" not in caught.value.remote_traceback


@pytest.mark.parametrize(
    ("method", "words"),
    [("ad", "did you mean 'add'"), ("private", "decorate it with @rpc"), ("zzz", "it has: add")],
)
def test_method_that_cannot_be_called_is_named(world, method, words):
    with pytest.raises(RemoteError, match=words):
        RoleGroup("callee")[0].call(method).result(timeout=20)


def test_unpicklable_argument_is_refused_at_the_call(world):
    with pytest.raises(TypeError, match=r"callee/0.add: argument 2, a _thread.lock, cannot be pickled"):
        RoleGroup("callee")[0].call("add", 1, threading.Lock())
    with pytest.raises(TypeError, match=r"b, a _thread.lock"):
        RoleGroup("callee")[0].call("add", 1, b=threading.Lock())


def test_unpicklable_result_names_its_type(world):
    with pytest.raises(RemoteError, match=r"result of callee/0.unpicklable, a callees.Unpicklable, cannot be pickled"):
        RoleGroup("callee")[0].call("unpicklable").result(timeout=20)


def test_unknown_role_is_named_with_those_that_are(world):
    with pytest.raises(UsageError, match=r"no such role\n  this job has: callee, caller"):
        RoleGroup("calee")
    with pytest.raises(IndexError, match="ranks 0 to 1, not 2"):
        RoleGroup("callee")[2]


def test_deadline_names_callee_and_time(world):
    with pytest.raises(CallTimeoutError, match=r"callee/0.nap: no answer within 0.3 s, waited 0\.\d s for its answer"):
        RoleGroup("callee").options(timeout=0.3)[0].call("nap", 5).result()


def test_calls_in_the_queue_of_a_callee_are_not_run_once_their_callers_gave_up(world, tmp_path):
    busy, gate, notes = RoleGroup("callee")[1], tmp_path / "gate", tmp_path / "notes"
    assert busy.call("add", 1).result(timeout=patience(20)) == 1  # from here on calls go out in their order
    holds = [busy.call("hold", str(gate)) for _ in range(Host.concurrency_groups["rpc"])]
    behind = [busy.options(timeout=1).call("note", str(notes), "late ") for _ in range(5)]
    for call in behind:
        with pytest.raises(CallTimeoutError, match=r"within 1 s, waited 1\.\d s in the queue of callee/1, not run"):
            call.result()
    gate.touch()
    for hold in holds:
        hold.result(timeout=patience(20))
    busy.call("note", str(notes), "later").result(timeout=patience(20))
    assert notes.read_text() == "later"


def test_result_with_a_timeout_leaves_the_call_alone(world):
    call = RoleGroup("callee")[0].call("nap", 0.5)
    with pytest.raises(TimeoutError, match="the call goes on"):
        call.result(timeout=0.05)
    assert not call.wait(0.01)
    assert call.result(timeout=20) == 0.5
    assert call.wait(0)


def test_calls_flow_on_while_the_master_is_gone(alone):
    import ray

    alone.up()
    group = RoleGroup("callee")
    assert group[0].call("add", 1).result(timeout=20) == 1
    ray.kill(alone.job.master)
    assert [group[0].call("add", i).result(timeout=20) for i in range(20)] == list(range(20))


def test_call_waits_until_the_callee_is_there(alone):
    call = RoleGroup("callee")[0].call("add", 5)
    assert not call.wait(0.2)
    alone.up()
    assert call.result(timeout=30) == 5


def test_deadline_is_honoured_while_the_callee_is_away(alone):
    with pytest.raises(CallTimeoutError, match="callee/0 to be ready"):
        RoleGroup("callee").options(timeout=0.3)[0].call("add", 5).result()


def test_call_waits_for_setup(ray_here, tmp_path):
    gate = tmp_path / "gate"
    world = World(tmp_path, config={"gate": str(gate)})
    try:
        world.up(wait=False)
        call = RoleGroup("callee")[0].call("add", 5)
        with pytest.raises(CallTimeoutError):
            RoleGroup("callee").options(timeout=0.3)[0].call("add", 5).result()
        gate.touch()
        assert call.result(timeout=30) == 5
    finally:
        world.close()


def test_call_lost_with_its_process_is_told_at_once(alone):
    alone.up()
    rank = RoleGroup("callee")[0]
    assert rank.call("add", 1).result(timeout=20) == 1
    pid = rank.call("whoami").result(timeout=20)[2]
    assert rank.call("nap", 0).result(timeout=20) == 0
    call = rank.call("nap", 60)
    assert not call.wait(0.2)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PeerLostError, match="it may have run, or not"):
        call.result(timeout=20)


def test_next_call_goes_to_the_next_incarnation(alone):
    alone.up()
    rank = RoleGroup("callee")[0]
    pid = rank.call("whoami").result(timeout=20)[2]
    sentinel = alone.hosts[0].sentinel()
    os.kill(pid, signal.SIGKILL)
    sentinel.broke.wait(20)
    eventually(lambda: _settled(rank))
    call = rank.call("whoami")
    assert not call.wait(0.2)
    alone.up(0, 2)
    assert call.result(timeout=30)[1] == 2


def _settled(rank) -> bool:
    """Whether calls park: until the caller's Ray has heard of the death, one may be lost."""
    try:
        return not rank.call("whoami").wait(0.1)
    except PeerLostError:
        return False


def test_idempotent_call_is_sent_again(alone, tmp_path):
    alone.up()
    rank = RoleGroup("callee")[0]
    call = rank.call("die_once", str(tmp_path / "note"))
    eventually((tmp_path / "note").exists)
    alone.up(0, 2)
    assert call.result(timeout=30) == 2


def test_call_that_is_not_idempotent_is_not_sent_again(alone):
    alone.up()
    call = RoleGroup("callee")[0].call("die")
    assert alone.hosts[0].sentinel().broke.wait(20)
    alone.up(0, 2)
    with pytest.raises(PeerLostError, match="incarnation"):
        call.result(timeout=30)


def test_caller_may_declare_a_call_idempotent(alone, tmp_path):
    alone.up()
    rank = RoleGroup("callee").options(idempotent=True)[0]
    call = rank.call("die")
    assert alone.hosts[0].sentinel().broke.wait(20)
    alone.up(0, 2)
    assert alone.hosts[0].sentinel().broke.wait(20)
    alone.tell(0, 2, "", ready=False, gone="callee/0 ended")
    with pytest.raises(CallError, match="callee/0 ended"):
        call.result(timeout=30)


@pytest.mark.parametrize("alone", [{"cls": "callees.Quitter"}], indirect=True)
def test_callee_that_ended_is_a_clear_error(alone):
    host = alone.up()
    assert host.ends()[0].outcome.ok
    call = RoleGroup("callee")[0].call("add", 1)
    alone.tell(0, 1, "", ready=False, gone="callee/0 ended well")
    with pytest.raises(CallError, match=r"callee/0.add: callee/0 ended well"):
        call.result(timeout=20)


@pytest.mark.parametrize("alone", [{"cls": "callees.Plain"}], indirect=True)
def test_plain_class_serves_too(alone):
    alone.up()
    assert RoleGroup("callee")[0].call("hello").result(timeout=20) == "hello"


def test_script_calls_through_its_host(alone, tmp_path):
    import json

    from role_kit import role_plan

    from dljob.runtime.worker.fork_host import ForkHost

    alone.up()
    host = alone.job.host(ForkHost, role_plan("caller", ("module", "forked.py"), args=("call", "callee")))
    host.start(0)
    assert host.ends(timeout=40)[0].outcome.ok
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["sum"] == 3
    assert "raised ValueError: the model said no" in answer["error"]
    assert "no answer within 0.5 s" in answer["late"]


def test_script_has_no_methods_to_call(alone):
    from role_kit import role_plan

    from dljob.runtime.worker.fork_host import ForkHost

    host = alone.job.host(ForkHost, role_plan("callee", ("module", "forked.py"), args=("stay",)))
    host.start(0)
    host.ready()
    alone.tell(0, 1, host.name)
    with pytest.raises(RemoteError, match="runs a module: only classes have methods"):
        RoleGroup("callee")[0].call("add").result(timeout=20)
