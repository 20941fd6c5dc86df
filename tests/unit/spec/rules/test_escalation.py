"""Every pair of a rule's action and what it escalates to is either taken or refused with what may stand there."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse
from dljob.spec.policy import RuleAction

WAYS = ("Ignore", "RestartProcess", "RestartRoleGroup", "RestartRole", "ReplaceNode", "RestartJob", "Fail")
"""From the least that is done to the most."""


def job(action: str, then: str) -> dict[str, object]:
    rule = {"name": "r", "onReasons": ["Hang"], "action": action, "maxAttempts": 2, "escalateTo": then}
    spec = {"roles": [{"name": "a", "entrypoint": {"class": "app.A"}}], "faultTolerance": {"rules": [rule]}}
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": spec}


def test_each_way_from_level_to_level_is_tried() -> None:
    in_process = "RestartInProcess"  # of other roles than this one
    assert {*WAYS, in_process} == set(get_args(RuleAction))


@pytest.mark.parametrize(("action", "then"), list(product(WAYS, WAYS)))
def test_a_rule_escalates_upwards_only(action: str, then: str) -> None:
    if WAYS.index(then) > WAYS.index(action):
        assert parse(job(action, then)).spec.fault_tolerance.rules[0].escalate_to == then
        return
    with pytest.raises(SpecError) as caught:
        parse(job(action, then))
    assert f"escalateTo must be above the action: {then} is not above {action}" in str(caught.value)
