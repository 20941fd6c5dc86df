"""Bugs that are planted are found: by which law, in which world; and without them nothing is."""

from __future__ import annotations

import pytest
from planted_bugs import BUGS
from segments_kit import Segmented

from dljob.testing.explore.worlds import explored
from dljob.testing.simulate import drive
from dljob.testing.simulate.drive import case_of, simulate

FOUND = {
    "drops_the_fence_of_incarnations": ("late words", "two live"),
    "skips_a_persist": ("one rank", "replay"),
    "acknowledges_before_it_writes": ("one rank", "stuck"),
    "forgets_a_budget": ("one rank", "budget"),
    "reuses_an_incarnation": ("one rank", "incarnation"),
    "tells_survivors_the_old_generation": ("in process", "world"),
    "starts_before_the_gang": ("a role that waits", "gang"),
    "ignores_an_exclusion": ("two nodes", "excluded"),
    "ignores_a_notice": ("a node that is to go", "leaving"),
    "doubles_a_command": ("commands", "command"),
    "skips_a_field_of_the_snapshot": ("one rank", "snapshot"),
    "forgets_a_spare": ("a spare", "spare"),
    "gives_a_spare_twice": ("a spare", "taken"),
    "leaves_a_spare_node_cold": ("a spare node", "spare"),
    "forgets_a_spare_and_lets_it_live": ("a spare node", "leak"),
    "ends_early": ("two drivers", "early"),
    "forgets_a_kill": ("one rank", "two hosts"),
    "starts_before_whom_it_waits_for": ("a role that waits", "dependency"),
    "forgets_what_was_under_way": ("one rank", "stuck"),
    "forgets_a_timer": ("one rank", "timer"),
    "keeps_a_reservation": ("two nodes", "leak"),
    "begins_before_it_ends": ("two ranks", "two hosts"),
    "starts_unchecked": ("checks", "check"),
    "skips_a_count": ("two nodes", "count"),
    "loads_all_at_once": ("weights of servers", "weights"),
    "serves_old_weights": ("weights of servers", "weights"),
    "serves_calls_with_old_weights": ("weights of servers", "weights"),
    "leaves_a_coupled_role_alone": ("a coupled pair", "coupled"),
    "restarts_a_fleet_for_its_size": ("a fleet", "elastic"),
    "lists_a_server_that_is_stopped": ("a server that drains", "endpoints"),
    "keeps_a_server_that_is_not_ready": ("a server", "endpoints"),
    "loses_a_server_that_failed_its_probe": ("a server", "unhealthy"),
    "ends_a_drain_too_soon": ("a server that drains", "drain"),
    "waits_for_ever_for_a_drain": ("a server that drains", "drain"),
    "kills_servers_that_begin_anew": ("a server that begins anew", "drain"),
    "waits_for_ever_to_begin_anew": ("a server that begins anew", "drain"),
    "forgets_the_endpoints": ("a server", "endpoints"),
    "tells_ready_before_its_probe": ("a server", "dependency"),
    "lets_the_lowest_number_go": ("a fleet", "fleet"),
    "keeps_its_room": ("a fleet that gives room", "fleet"),
    "leaves_a_number_out": ("a fleet", "fleet"),
    "kills_ranks_at_work": ("a fleet", "elastic"),
    "follows_every_load": ("a fleet", "fleet"),
    "takes_those_along_who_stay": ("a resize in process", "elastic"),
    "dates_no_stall_back": ("a rank that stands still", "stalls"),
    "ends_who_goes_at_work": ("a resize in process", "elastic"),
    "blames_a_witness": ("a lost peer", "blame"),
}
"""Bug -> the world that shows it, and the law that it breaks there."""
LONG = {
    "leaves_a_number_out",
    "lets_the_lowest_number_go",
    "kills_ranks_at_work",
    "takes_those_along_who_stay",
    "forgets_a_spare_and_lets_it_live",
    "gives_a_spare_twice",
    "restarts_a_fleet_for_its_size",
}
"""Bugs that take thousands of states; the same worlds show others in fewer."""
SEGMENTS = ("misorders_two_segments", "reads_beyond_the_fence")
"""Bugs of the real journal, in memory: shown by seeds."""
SEEDS = range(12)


def test_every_bug_is_looked_for():
    assert {*FOUND, *SEGMENTS} == set(BUGS)
    assert len(BUGS) >= 12


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in sorted(FOUND)])
def test_a_planted_bug_is_found(name, monkeypatch, record_property):
    world, law = FOUND[name]
    BUGS[name](monkeypatch)
    found = explored(world, 2, most=8000)
    assert found["problems"], f"not found in {found['states']} states"
    assert found["problems"][0].startswith(f"{law}:"), found["problems"]
    assert len(found["trace"]) < 30
    record_property("states", found["states"])


@pytest.fixture
def segments(monkeypatch):
    monkeypatch.setattr(drive, "World", Segmented)


def test_the_real_journal_in_memory_leads_every_master_to_what_was_known(segments):
    ended = [simulate(case_of(seed)) for seed in SEEDS]
    assert [result.problems for result in ended] == [()] * len(SEEDS)
    assert max(result.world.epoch for result in ended) > 3
    assert all(len(result.world.store.bytes) == result.world.epoch for result in ended)


@pytest.mark.parametrize("name", SEGMENTS)
def test_a_bug_of_the_journal_is_found(name, segments, monkeypatch):
    BUGS[name](monkeypatch)
    found = (simulate(case_of(seed)).problems for seed in SEEDS)
    assert any(problems and problems[0].startswith("segments:") for problems in found)
