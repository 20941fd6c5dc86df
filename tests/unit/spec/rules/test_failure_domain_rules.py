"""Rules about failure domains: what needs what, and labels that no machine has."""

from __future__ import annotations

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse


def said(node, **more):
    """What the loader finds in a job with this `faultTolerance.node`."""
    spec = {"roles": [{"name": "a", "entrypoint": {"class": "a.A"}}], "faultTolerance": {"node": node}, **more}
    try:
        parse({"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": spec})
    except SpecError as error:
        return [str(problem) for problem in error.problems]
    return []


GROUP = [{"name": "g", "labels": {"rack": "a"}}]
PAIR = {"failureDomainLabel": "rack", "domainFailures": 2}


@pytest.mark.parametrize(
    ("node", "hint"),
    [
        ({"failureDomainLabel": "rack"}, "failureDomainLabel and domainFailures need each other (add domainFailures"),
        ({"domainFailures": 2}, "failureDomainLabel and domainFailures need each other (add failureDomainLabel"),
    ],
)
def test_label_and_number_need_each_other(node, hint):
    (words,) = said(node, nodeGroups=GROUP)
    assert hint in words


def test_a_label_that_no_node_group_has_is_refused_with_a_proposal():
    (words,) = said({**PAIR, "failureDomainLabel": "racks"}, nodeGroups=GROUP)
    assert "no node group has the label racks" in words
    assert "rack" in words.split("racks", 1)[1]
    (words,) = said(PAIR, nodeGroups=[{"name": "g"}])
    assert "add it to labels of the nodeGroups" in words


@pytest.mark.parametrize(
    "more", [{}, {"nodeGroups": GROUP}, {"rayClusterRef": {"name": "shared"}}], ids=["running Ray", "own", "existing"]
)
def test_a_label_is_right_where_machines_may_have_it(more):
    assert not said(PAIR, **more)
