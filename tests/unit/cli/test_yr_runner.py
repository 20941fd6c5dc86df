"""`dljob run` without a Ray: what the one node of the SDK's local mode has."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.cli.yr_runner import YrRunner
from dljob.plan.plan import plan
from dljob.runtime.yr.resources import bundle_of
from dljob.spec.loading.load import parse


def manifest(replicas: int, resources: dict[str, str], **spec: Any) -> Any:
    role = {"name": "w", "replicas": replicas, "entrypoint": {"module": "train.py"}, "resources": resources}
    document = {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "small"}}
    return parse({**document, "spec": {"roles": [role], **spec}})


@pytest.mark.parametrize(("replicas", "memory"), [(4, "1G"), (3, "1500M"), (4, "1Gi"), (7, "1048577")])
def test_the_node_has_room_for_all_bundles_as_they_are_asked_for(tmp_path, replicas, memory):
    job = manifest(replicas, {"cpu": "1", "memory": memory})
    node = bundle_of(YrRunner(job, tmp_path)._everything())
    bundles = [bundle_of(bundle.resources) for unit in plan(job).units.values() for bundle in unit.bundles]
    assert len(bundles) == replicas
    assert {name: sum(bundle[name] for bundle in bundles) for name in bundles[0]} == node


def test_a_machine_that_has_more_than_is_asked_for_is_what_it_says(tmp_path):
    machine = {"name": "n", "replicas": 1, "cpu": "4", "memory": "8Gi"}
    job = manifest(2, {"cpu": "1", "memory": "1G"}, nodeGroups=[machine])
    assert bundle_of(YrRunner(job, tmp_path)._everything()) == {"CPU": 4000, "Memory": 8192}


def test_memory_that_nobody_asks_for_is_not_there(tmp_path):
    assert bundle_of(YrRunner(manifest(2, {"cpu": "1"}), tmp_path)._everything()) == {"CPU": 2000}
