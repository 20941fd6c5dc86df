"""Two PrimeMasters in every order of their moves and faults: one comes to command, and none is fenced that answers."""

from __future__ import annotations

import pytest

from dljob.master.placement.takeover import PeerQuestion, PeerState, TakeoverVerdict, judge
from dljob.testing.explore import pair
from dljob.testing.explore.pair import explore_pair


def test_with_four_faults_one_of_the_two_always_comes_to_command() -> None:
    states, broken = explore_pair(4)
    assert not broken
    assert states > 300, states


def test_a_claim_although_the_other_one_commands_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "judge", lambda question: TakeoverVerdict(question.claimed + 1, "planted"))
    assert "never stopped" in explore_pair(1)[1]


def test_a_follower_that_waits_for_a_silent_master_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def patient(question: PeerQuestion) -> TakeoverVerdict:
        return TakeoverVerdict(0, "planted") if question.state is not PeerState.SILENT else judge(question)

    monkeypatch.setattr(pair, "judge", patient)
    assert "nobody comes to command" in explore_pair(1)[1]
