"""An error that a callee raised is put down to the callee and its line, whoever of its callers ended by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from master_kit import World, error, job, nodes

from dljob.api.local.views import overview
from dljob.api.registry import RegistryEntry
from dljob.cli.diagnosis import diagnose
from dljob.errors import ErrorOrigin
from dljob.master.state import events as ev
from dljob.master.state.views import Clue, HostId, Outcome
from dljob.master.status import brief
from dljob.telemetry import reasons
from dljob.telemetry.remedies import CauseKind, of_fault

CALLER = {"name": "t"}
CALLEE = {"name": "w", "replicas": 2, "driver": False}
PLACE = "lost.py:12 in score"


def by_callee(error_type: str = "KeyError", message: str = "'god'", frame: str = PLACE) -> Outcome:
    """Return the end of a rank by an error that w/1 raised."""
    ended = error("RemoteError", "lost.py:18 in run", message="w/1.score raised it (in run)", code=1)
    return replace(ended, origin=ErrorOrigin("w/1", 3, error_type, message, frame))


def ended(*outcomes: Outcome, **spec: object) -> World:
    world = World(job(CALLER, CALLEE, **spec), views=nodes(4)).boot()
    for outcome in outcomes:
        world.send(ev.RankEnded("t", 0, world.state.ranks["t", 0].incarnation, outcome), after=1.0)
    return world


def diagnosis_of(world: World) -> tuple[CauseKind, list[str]]:
    status = {"name": "ppo", "uid": "a" * 32, **brief(world.state, world.now, {})}
    diagnosis = diagnose(overview(RegistryEntry("ppo", "a" * 32, "/gone"), status), "ppo", "")
    return diagnosis.kind, list(diagnosis.lines)


def test_callee_is_the_first_cause_with_its_line_and_its_caller_behind_it() -> None:
    world = ended(by_callee())
    fault = brief(world.state, world.now, {})["lastFault"]
    assert (fault["rank"], fault["incarnation"], fault["caller"], fault["target"]) == ("w/1", 3, "t/0", "t/0")
    place = f"(at {PLACE}); it ended t/0 (at lost.py:18 in run), exit code 1"
    assert fault["firstCause"] == f"w/1: UserError: KeyError: 'god' {place}"
    kind, lines = diagnosis_of(world)
    assert kind is CauseKind.USER_CODE
    assert lines[1].startswith("last failure: w/1, incarnation 3, at ")
    assert lines[1].endswith(f": UserError: KeyError: 'god' {place}")
    assert lines[-1].strip() == "dljob logs ppo --role w --rank 1"


def test_error_without_a_known_line_is_the_callees_too() -> None:
    fault = brief(ended(by_callee(frame="")).state, 0.0, {})["lastFault"]
    assert fault["firstCause"].startswith("w/1: UserError: KeyError: 'god'; it ended t/0 (at ")


@pytest.mark.parametrize(("line", "is_over"), [(PLACE, True), ("lost.py:30 in parse", False)])
def test_only_an_error_of_the_same_line_of_a_callee_is_a_repetition(line: str, *, is_over: bool) -> None:
    world = World(job(CALLER, CALLEE), views=nodes(4)).boot()
    for place in (PLACE, line):
        world.end("t", 0, by_callee(frame=place))
        world.settle()
        while world.state.incidents and world.state.verdict is None:
            world.tick()
            world.settle()
    verdict = world.state.verdict
    assert (verdict is not None and verdict.reason == reasons.USER_ERROR_REPEATS) is is_over
    assert verdict is None or verdict.message.startswith("w/1: UserError: KeyError: 'god'")


def test_callees_error_is_judged_by_its_own_type_and_words() -> None:
    kind, lines = diagnosis_of(ended(by_callee("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")))
    assert kind is CauseKind.MEMORY
    kind, lines = diagnosis_of(ended(by_callee("RuntimeError", "CUDA error: uncorrectable ECC error encountered")))
    assert (kind, "w/1" in lines[1]) == (CauseKind.DEVICE, True)


def test_node_of_the_caller_is_not_replaced_for_a_device_of_its_callee() -> None:
    rules = [{"name": "leave", "onReasons": ["DeviceError"], "action": "ReplaceNode"}]
    broken = "CUDA error: uncorrectable ECC error encountered"
    world = ended(by_callee("RuntimeError", broken), faultTolerance={"rules": rules})
    assert not world.state.exclusions
    caller_error = replace(by_callee(), origin=None, error_type="RuntimeError", message=broken)
    assert ended(caller_error, faultTolerance={"rules": rules}).state.exclusions


def test_later_evidence_about_the_callers_process_keeps_the_callee() -> None:
    world = ended(by_callee())
    world.send(ev.CauseLearned("t/0", (Clue("monitor", "hang: no step for 31 s"),), host=HostId("t", 0)))
    (fault,) = world.state.faults
    assert (fault.rank, len(fault.outcome.clues if fault.outcome else ())) == ("t/0", 1)
    assert fault.cause.startswith("w/1: Hang")


@pytest.mark.parametrize(("message", "follows"), [("lost peer w/0", True), ("lost peer w/9", False), ("lost", True)])
def test_callee_that_only_lost_a_peer_follows_from_the_failure_of_that_peer(message: str, *, follows: bool) -> None:
    world = World(job(CALLER, CALLEE), views=nodes(4)).boot()
    world.send(ev.RankEnded("w", 0, 1, error("KeyError", "w.py:3 in f")))
    world.send(ev.RankEnded("t", 0, 1, by_callee("DistNetworkError", message)), after=0.1)
    first = brief(world.state, world.now, {})["lastFault"]["firstCause"]
    assert first.startswith("w/0: UserError" if follows else "w/1: cause unknown, it lost its peer")


def test_the_advice_names_the_callee_s_line_and_not_its_caller_s() -> None:
    cause = "KeyError: 'god' (at lost.py:13 in score); it ended trainer/0 (at lost.py:18 in run), exit code 1"
    assert of_fault("UserError", cause).advice == "correct the code at lost.py:13 in score; then run the job again"


def test_callee_that_did_not_answer_in_time_is_the_first_cause_with_its_line() -> None:
    waited = (
        "w/1.score: no answer within 20 s, waited 20.0 s for its answer; w/1 runs it to its end, now at h.py:9 in f"
    )
    late = error("CallTimeoutError", "t.py:8 in run", message=f"{waited} (in run)", code=1)
    late = replace(late, origin=ErrorOrigin("w/1", 3, "CallTimeoutError", waited, "h.py:9 in f"))
    fault = brief(ended(late).state, 0.0, {})["lastFault"]
    assert fault["firstCause"] == (
        f"w/1: UserError: CallTimeoutError: {waited}; it ended t/0 (at t.py:8 in run), exit code 1"
    )
    assert (fault["rank"], fault["incarnation"], fault["caller"]) == ("w/1", 3, "t/0")
