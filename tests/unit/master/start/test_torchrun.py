"""What becomes of the failures of a torchrun line: as many restarts as it says, whatever the script fails of."""

from __future__ import annotations

import pytest
from master_kit import World, error, nodes

from dljob.api import torchrun, torchrun_line
from dljob.master.state import events as ev
from dljob.master.state import limits
from dljob.master.state.state import Phase
from dljob.master.state.views import Outcome
from dljob.plan.plan import plan
from dljob.spec.loading.load import parse
from dljob.telemetry import reasons


@pytest.fixture
def boot(tmp_path):
    """The job of a line, on nodes that have a processor each for a rank."""
    (tmp_path / "train.py").write_text("")

    def run(words):
        line = torchrun_line.read([*words.split(), "train.py"], {})
        manifest = parse(torchrun.job(line, torchrun.Site(True, 4, {}, tmp_path)).document)
        return World((plan(manifest), manifest.spec), views=nodes(2, cpus=2)).boot()

    return run


def until_it_runs(world):
    while world.state.verdict is None and world.state.phase is not Phase.RUNNING:
        world.tick()
        world.settle()


@pytest.mark.parametrize("words", ["--nproc-per-node=1", "--nproc-per-node=2", "--nnodes=2 --nproc-per-node=2"])
@pytest.mark.parametrize("most", [0, 1, 3, 10])
@pytest.mark.parametrize("said", [error(), error(fatal=True)])
def test_the_same_error_again_and_again_ends_the_job_after_as_many_restarts_as_are_said(boot, words, most, said):
    world = boot(f"{words} --max-restarts={most}")
    failures = 0
    while world.state.verdict is None:
        failures += 1
        world.end("default", 0, said)
        world.settle()
        until_it_runs(world)
    assert failures == most + 1
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED
    words = f"no restarts are left: {most} of default within " if most else "default may not restart: maxRestarts is 0"
    assert f"; {words}" in world.state.verdict.message
    assert world.state.verdict.message.endswith(" (dljob torchrun --max-restarts=N allows more)")
    assert "Job" not in world.state.restarts


ECHO = error("RuntimeError", message="[../gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:4711")


def node_of(world, rank):
    return world.state.hosts[world.key_host("default", rank)].node


def lose(world, number):
    """The first machine is gone, and another one comes."""
    world.lose_node(world.state.units["default/0"].node)
    world.add_node(nodes(20, cpus=2)[number])
    world.settle()
    until_it_runs(world)


def test_a_lost_node_uses_up_no_restart_of_torchrun(boot):
    world = boot("--nnodes=2 --nproc-per-node=2 --max-restarts=0")
    for number in (9, 10, 11):
        lose(world, number)
        assert world.state.verdict is None
    assert world.state.restarts["Node"] == 3


@pytest.mark.parametrize("echo", [True, False])
def test_failures_of_a_lost_node_before_it_is_known_use_up_no_restart(boot, echo):
    world = boot("--nnodes=2 --nproc-per-node=2 --max-restarts=1")
    for number in (9, 10, 11):
        world.now += 100
        gone = next(rank for rank in range(4) if node_of(world, rank) == world.state.units["default/0"].node)
        if echo:  # a peer's collective breaks
            world.end("default", (gone + 2) % 4, ECHO)
            world.deliver()
            world.send(ev.Tick(), after=limits.PEER_WAIT_S)
        else:  # Ray tells of the process alone
            world.kill("default", gone)
            world.deliver()
        assert len(world.state.marks["default"]) == 1
        lose(world, number)
        assert world.state.verdict is None
        assert world.state.marks["default"] == ()


def test_an_error_of_the_script_beside_a_lost_node_uses_up_a_restart(boot):
    world = boot("--nnodes=2 --nproc-per-node=2 --max-restarts=1")
    world.end("default", 0, error())
    world.settle()
    lose(world, 9)
    world.end("default", 0, error())
    world.settle()
    assert world.state.verdict.reason == reasons.BUDGET_EXHAUSTED


def test_what_a_rank_left_running_at_its_end_is_in_the_timeline(boot):
    world = boot("--nproc-per-node=2")
    words = "1 process still ran after its end and was killed: sleep 60 (pid 9)"
    world.end("default", 0, Outcome(ok=True, code=0, message=words))
    world.end("default", 1)
    world.settle()
    assert world.state.verdict.ok
    assert [(note.target, note.message) for note in world.notes(reasons.PROCESSES_LEFT)] == [("default/0", words)]
