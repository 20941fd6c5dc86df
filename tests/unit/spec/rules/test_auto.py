"""The rules about resources.auto: the order of bounds, values within them, and places without records."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import SpecError
from dljob.plan.plan import plan
from dljob.spec.loading.load import load, parse

FILE = """\
apiVersion: dljob.io/v1alpha1
kind: DLJob
metadata: {name: j}
spec:
  roles:
  - name: t
    entrypoint: {class: m.T}
    resources:
      auto:
        memory: {min: 2Gi, max: 1024Mi}
"""


def data(resources: dict[str, Any], **more: Any) -> dict[str, Any]:
    role = {"name": "t", "entrypoint": {"class": "m.T"}, "resources": resources, **more}
    kind = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob"}
    return {**kind, "metadata": {"name": "j"}, "spec": {"roles": [role]}}


def test_min_above_max_is_told_with_its_place() -> None:
    with pytest.raises(SpecError) as caught:
        load(FILE, file="j.yaml")
    assert (
        "j.yaml:10:23: spec.roles[0].resources.auto.memory.min: min must not be above max: 2Gi is above 1024Mi"
        in str(caught.value)
    )


@pytest.mark.parametrize(
    ("resources", "more", "said"),
    [
        ({"auto": {}}, {}, "auto needs cpu, memory or both"),
        ({"auto": {"cpu": {"min": "2", "max": "1500m"}}}, {}, "auto.cpu.min: min must not be above max"),
        ({"cpu": "8", "auto": {"cpu": {"min": "1", "max": "4"}}}, {}, "8 is not between 1 and 4"),
        ({"memory": "1Gi", "auto": {"memory": {"min": "2Gi", "max": "4Gi"}}}, {}, "1Gi is not between 2Gi and 4Gi"),
        (
            {"memory": "2Gi", "auto": {"memory": {"min": "2Gi", "max": "4Gi"}}},
            {"restartPolicy": {"outOfMemory": {"maxMemory": "4096Mi"}}},
            "auto.memory.max must be below outOfMemory.maxMemory: 4Gi is not below 4096Mi",
        ),
        ({"auto": {"cpu": {"min": "1"}}}, {}, "auto.cpu"),
    ],
)
def test_wrong_bounds_say_why(resources: dict[str, Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(data(resources, **more))
    assert said in str(caught.value)


def test_growth_may_begin_within_the_bounds() -> None:
    growth = {"restartPolicy": {"outOfMemory": {"maxMemory": "8Gi"}}}
    parse(data({"memory": "2Gi", "auto": {"memory": {"min": "2Gi", "max": "4Gi"}}}, **growth))


def test_least_amounts_stand_until_they_are_chosen() -> None:
    bounds = {"cpu": {"min": "2", "max": "4"}, "memory": {"min": "1Gi", "max": "4Gi"}}
    same = parse(data({"cpu": "2", "memory": "1Gi"}))
    assert plan(parse(data({"auto": bounds}))).units == plan(same).units
    assert (
        plan(parse(data({"cpu": "3", "auto": {"cpu": bounds["cpu"]}}))).units == plan(parse(data({"cpu": "3"}))).units
    )
