"""Which of two PrimeMasters commands: each end of a question, and all ways in which two of them can meet."""

from __future__ import annotations

import pytest

from dljob.master.placement.takeover import LATE_S, SILENT_S, PeerQuestion, PeerState, judge, start_again_after


@pytest.mark.parametrize(
    ("heard", "took_s", "claim", "fence", "why"),
    [
        (PeerState.COMMANDS, 0.5, 0, False, "commands"),
        (PeerState.FOLLOWS, 0.0, 8, False, "does not command"),
        (PeerState.BROKEN, 0.0, 8, False, "broke"),
        (PeerState.ABSENT, 0.0, 8, False, "there is no other"),
        (PeerState.SILENT, SILENT_S, 8, True, "no answer for 2.0 s"),
        (PeerState.SILENT, SILENT_S + 2 * LATE_S, 0, False, "was stopped itself for 1.0 s"),
    ],
)
def test_each_end_of_a_question_has_its_verdict(heard: PeerState, took_s: float, claim: int, fence: bool, why: str):
    verdict = judge(PeerQuestion(heard, 7, took_s))
    assert (verdict.claim, verdict.fence, why in verdict.reason) == (claim, fence, True)


def test_failed_starts_wait_longer_each_time_and_end_at_last():
    assert [start_again_after(count, 7) for count in range(9)] == [5, 5, 10, 20, 40, 60, 60, 60, None]
    assert [start_again_after(count, 0) for count in (0, 1)] == [5, None]
