"""Words about the ends and states of Ray's processes."""

from __future__ import annotations

import pytest

from dljob.telemetry.process_ends import ProcessEnd, describe_end, describe_states, last_error

RAYLET = ("raylet", "cpu2-0", 7242)


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        (9, "", "was ended by SIGKILL from outside"),
        (15, "told to go", "was ended by SIGTERM from outside"),
        (44, "", "was ended by signal 44 from outside"),
        (11, "", "crashed: SIGSEGV"),
        (6 | 0x80, "Check failed: x", "crashed: SIGABRT: Check failed: x"),
        (1 << 8, "an agent failed", "ended by itself with code 1: an agent failed"),
        (0, "", "ended by itself with code 0"),
        (None, "", "ended, and its exit status is unknown"),
    ],
)
def test_an_end_is_told_by_its_wait_status(status: int | None, error: str, words: str) -> None:
    assert describe_end(ProcessEnd(*RAYLET, status, error)) == f"the raylet (pid 7242) of cpu2-0 {words}"


def test_the_last_error_of_a_log_is_that_before_the_stack() -> None:
    log = [
        "[2026-11-29 12:01:41,550 E 21360 21426] (raylet) agent_manager.cc:80: an earlier one\n",
        "[2026-11-29 12:01:41,551 I 21360 21426] (raylet) accessor.cc:204: Unregistering node\n",
        "[2026-11-29 12:01:41,551 F 21360 21426] (raylet) agent_manager.cc:87:  Check failed: agent\n",
        "[2026-11-29 12:01:41,551 E 21360 21426] (raylet) logging.cc:474: *** SIGABRT received ***\n",
        "[2026-11-29 12:01:41,551 E 21360 21426] (raylet) logging.cc:474:     @  0x7fb280a4524a (unknown)\n",
        "The raylet fate shares with the agent.\n",
    ]
    assert last_error(log) == "Check failed: agent"
    assert last_error(log[1:2]) == ""
    assert len(last_error([f"[2026 E 1 1] (raylet) a.cc:1: {'x' * 1000}"])) == 300


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ("SSR", ""),
        ("T", "its raylet (pid 7) is stopped (state T)"),
        ("TSR", "its raylet (pid 7) is stopped (state T)"),
        ("TTS", "its raylet (pid 7) and 1 of the 2 processes below it are stopped (state T)"),
        ("STTD", "its raylet (pid 7) can run, but 2 of the 3 processes below it are stopped (state T)"),
        ("St", "its raylet (pid 7) can run, but 1 of the 1 process below it is held by a debugger (state t)"),
        ("DS", "its raylet (pid 7) is waiting for a disk or a driver (state D)"),
    ],
)
def test_a_node_is_silent_because_of_the_states_of_its_processes(states: str, words: str) -> None:
    assert describe_states(7, states) == words
