"""Engines on spot machines: what the core makes of the fleet, and what becomes of the streams."""

from __future__ import annotations

import pytest

from dljob.calls.resumption import StreamProgress
from dljob.testing.simulate import spot
from dljob.testing.simulate.spot import PER_MACHINE, Served, Spot, SpotDriver, Streams, compared, fixed, serve

WORK = Streams(width=2, longest_s=100.0, tokens_per_s=10.0, prefill_per_s=1e9, prompt=0)
DAY = Spot(machines=4, days=0.5, zone="us-west-2b", load_s=30.0)


def test_an_engine_that_is_never_ended_makes_tokens_all_the_time() -> None:
    told = serve([Served(0.0, 1000.0, drained=False)], WORK, 1000.0, resume=True)
    assert (told.lost, told.again, told.moved) == (0, 0, 0)
    assert told.useful == pytest.approx(2 * 1000 * 10, abs=told.ended + 2)


@pytest.mark.parametrize(("drained", "again"), [(True, 0), (False, 32)])
def test_a_stream_that_resumes_loses_at_most_what_is_under_way(drained: bool, again: int) -> None:
    engines = [Served(0.0, 500.0, drained), Served(500.0, 1000.0, drained=False)]
    told = serve(engines, WORK, 1000.0, resume=True, seed=1)
    assert (told.lost, told.again, told.moved, told.wrong) == (0, again, 2, 0)
    whole = serve([Served(0.0, 1000.0, drained=False)], WORK, 1000.0, resume=True, seed=1)
    assert told.useful == pytest.approx(whole.useful - again, abs=40)


def test_a_stream_that_begins_anew_loses_all_that_it_had() -> None:
    engines = [Served(0.0, 500.0, drained=True), Served(500.0, 1000.0, drained=False)]
    told = serve(engines, WORK, 1000.0, resume=False, seed=1)
    kept = serve(engines, WORK, 1000.0, resume=True, seed=1)
    assert told.lost > 100
    assert told.useful == pytest.approx(kept.useful - told.lost, abs=40)


def test_a_stream_goes_on_when_there_is_an_engine_again() -> None:
    engines = [Served(0.0, 10.0, drained=False), Served(700.0, 1000.0, drained=False)]
    told = serve(engines, WORK, 1000.0, resume=True)
    assert told.useful == pytest.approx(2 * 310 * 10 - told.again, abs=80)


def test_a_caller_that_would_take_tokens_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_items(self: StreamProgress, items: list[object]) -> None:
        self.received.extend(b"" for _ in items)

    monkeypatch.setattr(StreamProgress, "add_items", add_items)
    told = serve([Served(0.0, 50.0, False), Served(50.0, 99.0, False)], WORK, 99.0, resume=True)
    assert told.wrong > 0


def test_a_fleet_breathes_through_a_day_of_preemptions_and_breaks_no_law() -> None:
    rows = {row["fleet"]: row for row in compared(DAY, Streams(longest_s=600.0))}
    anew, resumes = rows["fixed, anew"], rows["breathes, resumes"]
    assert (resumes["problems"], resumes["phase"]) == ([], "Running")
    assert (resumes["tokensLost"], resumes["wrong"]) == (0, 0)
    assert resumes["enginesEnded"] > 8
    assert anew["tokensLost"] > 0
    assert anew["goodput"] < resumes["goodput"] < 1.0


def test_engines_serve_while_there_are_machines_for_them() -> None:
    driver = SpotDriver(DAY)
    seconds = sum(own.end - own.begin for own in driver.play())
    there = sum(until - begin for begin, until in spot.machine_spans(DAY)) * PER_MACHINE
    assert 0.8 * there < seconds < there
    ideal = sum(own.end - own.begin for own in fixed(DAY))
    assert seconds == pytest.approx(ideal, rel=0.1)
