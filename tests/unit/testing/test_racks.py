"""Jobs on racks, under all that can go wrong: no role lies in two of them, and who wants a node alone has it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from immutables import Map

from dljob.master.state.state import UnitPhase, UnitState
from dljob.master.state.views import NodeView
from dljob.master.transition import initial
from dljob.plan.plan import plan
from dljob.spec.model import DLJobManifest
from dljob.telemetry import reasons
from dljob.testing.simulate import report
from dljob.testing.simulate.drive import Driver, case_of
from dljob.testing.world import domain_invariants

MARK = "scheduling.dljob.io/"


def racked(*, spread=False, elastic=False, key="topology-key"):
    """A role of two groups in one of two racks, and one beside it that goes anywhere."""
    marks = {f"{MARK}{key}": "rack", **({f"{MARK}strategy": "STRICT_SPREAD"} if spread else {})}
    role = {"name": "a", "replicas": 2, "entrypoint": {"class": "a.B"}, "resources": {"cpu": "2"}, "annotations": marks}
    other = {"name": "b", "driver": False, "replicas": 2, "entrypoint": {"module": "b"}, "resources": {"cpu": "1"}}
    groups = [{"name": name, "replicas": 2, "cpu": "3", "labels": {"rack": name}} for name in ("n", "m")]
    return {
        "metadata": {"name": "racks"},
        "spec": {"roles": [{**role, **({"type": "Elastic"} if elastic else {})}, other], "nodeGroups": groups},
    }


RATHER = "preferred-topology-key"


@pytest.mark.parametrize(
    "made",
    [
        *(racked(), racked(spread=True), racked(elastic=True)),
        *(racked(key=RATHER), racked(spread=True, key=RATHER), racked(elastic=True, key=RATHER)),
    ],
)
def test_no_role_lies_in_two_racks_whatever_goes_wrong(made):
    found = report.many(range(25), made)
    assert found["failures"] == []
    assert any(end.startswith("Succeeded") for end in found["ends"])


def replaced(racks, replicas):
    """A role on racks of so many nodes, of which each is left as a whole after two failed nodes."""
    made = racked()
    made["spec"]["roles"][0].pop("annotations")
    made["spec"]["nodeGroups"] = [
        {"name": name, "replicas": replicas, "cpu": "3", "labels": {"rack": name}} for name in racks
    ]
    node = {"failureDomainLabel": "rack", "domainFailures": 2, "domainWindowSeconds": 86400}
    made["spec"]["faultTolerance"] = {"node": node}
    return made


@pytest.mark.parametrize(
    ("made", "reason"),
    [(replaced("nmk", 2), reasons.DOMAIN_REPLACED), (replaced("n", 5), reasons.DOMAIN_STAYS)],
)
def test_racks_that_are_left_or_used_on_as_a_whole_break_no_law(made, reason):
    told = Counter()
    for seed in range(40):
        driver = Driver(case_of(seed, made))
        assert not driver.run().problems, seed
        told.update(note.reason for _, note in driver.world.notes)
    assert told[reason]


def placed(made, **where):
    """The state of a job with units that are held on these nodes."""
    manifest = DLJobManifest.model_validate(made)
    state = initial(plan(manifest), manifest.spec, "u" * 32, 0.0)
    nodes = tuple(NodeView(name, (), (), (("rack", name[0]),)) for name in ("n0", "n1", "m0"))
    units = {f"a/{k[1:]}": UnitState(UnitPhase.HELD, 1, node) for k, node in where.items()}
    return replace(state, nodes=nodes, units=Map(units))


def broken(made, **where):
    """What the law says of units that are held on these nodes."""
    return list(domain_invariants.check_domains(placed(made, **where)))


def test_the_law_of_preferences_wants_that_users_are_told():
    made = racked(key=RATHER)
    assert list(domain_invariants.check_preferences(placed(made, a0="n0", a1="n1"), ())) == []
    apart = placed(made, a0="n0", a1="m0")
    assert list(domain_invariants.check_preferences(apart, ["a"])) == []
    (said,) = domain_invariants.check_preferences(apart, ["b"])
    assert said == "preference: a is in ['m', 'n'], and nobody was told"


def test_the_law_sees_what_it_is_there_for():
    assert broken(racked(spread=True), a0="n0", a1="n1") == []
    assert broken(racked(), a0="n0", a1="n0") == []
    assert broken(racked(), a0="n0", a1="m0") == ["domain: a is in ['m', 'n']"]
    assert broken(racked(spread=True), a0="n0", a1="n0") == ["spread: a has two units on a node of ['n0', 'n0']"]
    assert broken(racked(), a0="n0") == []
