"""The operator killed at a few points of a job's life, on a real API server with a real Ray; `make sweep` has all."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cluster.handle import Cluster

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))
sys.path.append(str(Path(__file__).parents[2]))

from director import MISSED, Calm, Director, Point, Result, Results, differences, shared
from life import NODES, Life
from table import judged

from dljob.kube.api import Json
from tiers import isolated

POINTS = (
    Point("restart", "POST rayclusters j-<1> #1", "after"),
    Point("restart", "Ray of j-<1>: POST /api/jobs/ j-1 #1", "after"),
    Point("restart", "gateway of j-<1>: POST /v1/jobs/<uid>/commands restart worker/0 #1", "after"),
    Point("loss", "PATCH dljobs/j/status phase=Recovering in <2> #1", "after"),
)
"""Where a crash would cost most: machines taken, a submission, a command, an attempt, of which nobody knows yet."""

LIVED = ("restart", "loss")


@pytest.mark.timeout(600)
def test_a_killed_operator_leaves_nothing_twice_and_nothing_behind(
    plane: Cluster, kwok: Callable[..., None], tmp_path: Path
) -> None:
    kwok(len(NODES))

    async def lives() -> tuple[list[Life], list[Json]]:
        async with Director.on(plane.kubeconfig, tmp_path, isolated()) as director:
            lives = [*map(director.life, LIVED), *(director.life(point.play, point) for point in POINTS)]
            return lives, await asyncio.gather(*(life.live() for life in lives))

    all_of_them, digests = asyncio.run(lives())
    calm = dict(zip(LIVED, digests, strict=False))
    disturbed, others = all_of_them[len(LIVED) :], digests[len(LIVED) :]
    for play, digest in calm.items():
        attempts = 1 if play == "restart" else 2
        assert (digest["phase"], digest["attempt"]) == ("Succeeded", attempts)
        assert digest["clusters"] == ["j-<1>", "j-<2>"][:attempts]
        assert [sent for sent, _ in digest["submissions"]] == ["j-<uid>-1", "j-<uid>-2"][:attempts]
        assert (digest["left in Ray"], digest["refused"]) == ([], 0)
    restarts = {"restart": {"process": 1}, "loss": {"cluster": 1}}
    assert {play: digest["restarts"] for play, digest in calm.items()} == restarts
    assert [life.operator.deaths for life in disturbed] == [1] * len(POINTS)
    assert [(point, differences(calm[point.play], other)) for point, other in zip(POINTS, others, strict=True)] == [
        (point, []) for point in POINTS
    ]
    assert [life.laws() for life in disturbed] == [[]] * len(POINTS)


def test_concurrent_status_patches_count_as_one_call_and_calls_missing_in_some_lives_as_chance() -> None:
    get, first, second, extra = "GET pods #1", "PATCH j/status a #1", "PATCH j/status b #1", "POST events X #1"
    one = [[get], [first, second], ["GET pods #2"], [extra]]
    together = [[get], ["POST events Y #1"], [first, second]]
    assert shared([one, together]) == ([get, first], [extra, "POST events Y #1"])
    apart = [[get], [first], [second]]
    assert shared([one, apart]) == ([get, first, second], [extra])


def test_a_point_that_is_not_met_and_a_chance_that_nobody_explains_fail_the_sweep(tmp_path: Path) -> None:
    results = Results(tmp_path / "kept", resume=False)
    results.begin(Calm("restart", {}, ["POST a #1", "POST b #1"], ["PATCH phase=Stopping in <1> #1", "POST odd #1"]))
    for call, when, how in (
        ("POST a #1", "before", "same"),
        ("POST a #1", "after", MISSED),
        ("POST b #1", "after", "no"),
    ):
        results.add(Result("restart", call, when, how, 1.0))
    for call in ("PATCH phase=Stopping in <1> #1", "POST odd #1"):
        for when in ("before", "after"):
            results.add(Result("restart", call, when, MISSED, 1.0))
    assert judged(Results(tmp_path / "kept", resume=True)) == [
        "restart after POST a #1: not met",
        "restart before POST b #1: not tried",
        "restart after POST b #1: no",
        "POST odd #1: by chance, and nothing in BY_CHANCE says why",
    ]
