"""The law of streams that resume, over schedules of losses: each item once and in order; planted bugs break it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, find, given, settings
from hypothesis import strategies as st

from dljob.calls.resumption import CalleeLoss, CalleeRank, GapError, StreamProgress, WireItem, choose_callee

COUNT, RANKS = 12, 3


class Turn(NamedTuple):
    """What one callee gives before it is lost: batches of these sizes, of which one may be repeated or left out."""

    batches: tuple[int, ...]
    repeated: bool
    left_out: bool
    version: int


turns = st.builds(
    Turn, st.tuples(st.integers(0, 4), st.integers(0, 4)), st.booleans(), st.booleans(), st.integers(1, 2)
)
schedules = st.lists(turns, max_size=RANKS - 1)


def token(position: int) -> bytes:
    return b"%d" % (position * position % 97)


@dataclass
class Model:
    """A caller with its callees; a callee goes on behind the prefix that it is given."""

    progress: StreamProgress = field(default_factory=StreamProgress)
    choose: Callable[..., object] = choose_callee
    got: list[bytes] = field(default_factory=list)
    sent_count: int = 0
    served: list[tuple[int, int]] = field(default_factory=list)

    def run(self, schedule: Sequence[Turn]) -> None:
        """Give the stream up to one callee after another; the last one lives to its end."""
        lives = [1] * RANKS
        last = Turn((COUNT,), repeated=False, left_out=False, version=1)
        for turn in (*schedule, last):
            callees = [CalleeRank(rank, life, ready=True, is_gone=False) for rank, life in enumerate(lives)]
            place = self.choose(callees, self.progress.losses, {}, 0)
            rank = place.rank  # type: ignore[attr-defined]
            self.served.append((rank, lives[rank]))
            self.progress.begin_segment(f"rollout/{rank}", lives[rank])
            self._serve(turn)
            loss = CalleeLoss(rank, lives[rank], len(self.progress.received), died=True, opened=True, reason="")
            self.progress.losses.append(loss)
            # It comes back, but PrimeMaster learns of the death of every other one only later.
            lives[rank] += rank % 2

    def _serve(self, turn: Turn) -> None:
        position = len(self.progress.received)
        batches = list[list[WireItem]]()
        for size in turn.batches:
            end = min(COUNT, position + size)
            batches.append([WireItem(n, turn.version, token(n)) for n in range(position, end)])
            position = end
        if turn.repeated:
            batches.insert(1, batches[0])
        if turn.left_out:
            del batches[0]
        for batch in batches:
            self.sent_count += len(batch)
            try:
                self.got += [item.packed for item in self.progress.add_items(batch)]
            except GapError:
                return


def broken(model: Model) -> str:
    """Return how the law is broken; empty where it holds."""
    want = [token(n) for n in range(COUNT)]
    if model.got != want[: len(model.got)] or model.progress.received != model.got:
        return "an item is doubled, missing or in another place"
    if len(model.got) < COUNT:
        return "the last callee lived, and the stream has no end"
    spans = [n for part in model.progress.segments for n in range(part.first, part.first + part.count)]
    if spans != list(range(COUNT)):
        return "segments do not say of each item who made it"
    return "" if len(set(model.served)) == len(model.served) else "a process that lost it was asked again"


@given(schedules)
def test_each_item_comes_once_and_in_order_over_all_schedules(schedule: list[Turn]) -> None:
    # Three ranks, of which one comes back each time: no more losses than that leaves somebody to ask.
    model = Model()
    model.run(schedule)
    assert broken(model) == ""


class TakesAgain(StreamProgress):
    """Takes what comes, also what it has."""

    def add_items(self, items: Sequence[WireItem]) -> list[WireItem]:
        self.received += [item.packed for item in items]
        return list(items)


class SeesNoGap(StreamProgress):
    """Takes what it does not have, wherever it begins."""

    def add_items(self, items: Sequence[WireItem]) -> list[WireItem]:
        new = [item for item in items if item.position >= len(self.received)]
        self.received += [item.packed for item in new]
        return new


class TellsNoSegment(StreamProgress):
    """Takes all rightly, and does not say who made it."""

    def _add_to_segment(self, *_: object) -> None:
        pass


def asks_anyone(callees: Sequence[CalleeRank], *_: object) -> object:
    """Choose the first that PrimeMaster says is ready, also a dead one."""
    return choose_callee(callees, [], {}, 0)


@pytest.mark.parametrize(
    ("planted", "words"),
    [
        (lambda: Model(TakesAgain()), "doubled"),
        (lambda: Model(SeesNoGap()), "doubled"),
        (lambda: Model(TellsNoSegment()), "segments"),
        (lambda: Model(choose=asks_anyone), "asked again"),
    ],
    ids=["takes again", "sees no gap", "tells no segment", "asks anyone"],
)
def test_the_law_finds_a_planted_bug(planted: Callable[[], Model], words: str) -> None:
    def breaks(schedule: list[Turn]) -> bool:
        model = planted()
        model.run(schedule)
        return words in broken(model)

    find(schedules, breaks, settings=settings(suppress_health_check=list(HealthCheck), database=None))
