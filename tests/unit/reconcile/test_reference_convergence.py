"""Whatever happens to a RayCluster that is not the job's, and wherever the operator dies: it is touched by nobody."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reconcile_kit import World
from test_convergence import NATURE, lawful, one_pass
from test_reference import there, touched, world

from dljob.reconcile.state import names


def _made_again(it: World) -> None:
    cluster = there()
    cluster["metadata"]["uid"] = f"uid-{len(it.log)}"
    it.clusters["shared"], it.pods["shared"] = cluster, []


OWN = {"job suspended", "job resumed"}
"""What only a job with a RayCluster of its own can be: the API server refuses it here."""
HERE = {
    **{what: how for what, how in NATURE.items() if what not in OWN},
    "made again": (lambda it: not it.clusters, _made_again),
}
TOLD = st.tuples(st.sampled_from(sorted(HERE)), st.none())
PASS = st.tuples(st.just("pass"), st.one_of(st.none(), st.integers(0, 5)))
STORIES = st.lists(st.one_of(PASS, PASS, TOLD), max_size=60)


@pytest.mark.slow
@settings(max_examples=200)
@given(STORIES, st.sampled_from(["Succeeded", "Failed"]))
def test_any_interleaving_ends_and_leaves_the_cluster_alone(story: list[tuple[str, int | None]], end: str) -> None:
    it = world(faultTolerance={"maxClusterRestarts": 2})
    for what, fuse in story:
        if what == "pass":
            one_pass(it, fuse)
        else:
            possible, happen = HERE[what]
            if possible(it):
                happen(it)
        lawful(it)
    if not it.clusters:
        _made_again(it)
    it.cluster["spec"].pop("suspend", None)
    it.calm(end, rounds=20)
    it.settle()
    assert it.phase == end or it.status["reason"] == "ClusterRestartsExhausted"
    assert it.status.get("restarts", {}).get("cluster", 0) <= 2
    assert touched(it) == []
    assert it.secrets == {}
    assert list(it.clusters) == ["shared"]
    assert it.job is not None
    assert names.FINALIZER not in it.job["metadata"].get("finalizers", [])
    rest = it.look()
    assert (rest.actions, rest.events, rest.status, rest.watch) == ((), (), None, None)
