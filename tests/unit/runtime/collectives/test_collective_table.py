"""Which backends a job has, and which of them are taken."""

from __future__ import annotations

import json
import sys
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

import pytest
from ray.util.collective import backend_registry
from ray.util.collective.collective_group.base_collective_group import BaseGroup

from dljob.errors import CollectiveError
from dljob.plan.env import COLLECTIVES
from dljob.runtime.collectives import table as module
from dljob.runtime.collectives.table import Table, register_backends, register_for_rank, table
from dljob.runtime.process.entrypoint import EntrypointError

METHODS = ("allreduce", "barrier", "reduce", "allgather", "broadcast", "reducescatter", "send", "recv")


def backend(name: str, *methods: str) -> type[BaseGroup]:
    body: dict[str, Any] = {method: lambda *_: None for method in methods}
    return type(name, (BaseGroup,), {**body, "check_backend_availability": classmethod(lambda _: True)})


@pytest.fixture(autouse=True)
def acme(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A user's module with backends, and a registry of Ray's that forgets after the test."""
    made = ModuleType("acme")
    made.__dict__.update(
        Whole=backend("Whole", *METHODS), Other=backend("Other", *METHODS), Half=backend("Half", "allreduce"), NO=3
    )
    monkeypatch.setitem(sys.modules, "acme", made)
    registry = backend_registry._global_registry
    monkeypatch.setattr(registry, "_map", dict(registry._map))
    return made


def said(backends: dict[str, str] | None = None, *points: tuple[str, str], group: str = "GLOO") -> Table:
    groups = {"w": {"backend": group, "roles": ["a"], "timeout_s": 9, "recreate": True}}
    text = json.dumps({"backends": backends or {}, "groups": groups})
    found = [EntryPoint(name, value, "dljob.collectives") for name, value in points]
    return table({COLLECTIVES: text}, lambda: found)


def known(name: str) -> Any:
    return backend_registry._global_registry._map.get(name)


def test_a_job_that_declares_no_backend_has_none():
    assert table({}) == Table({}, {})
    table({}).register()


def test_a_declared_backend_is_registered_once(acme):
    made = said({"MYCCL": "acme.Whole"}, ("Entry", "acme:Other"), ("unused", "acme:Missing"), group="ENTRY")
    for _ in range(2):
        made.register()
    assert (known("MYCCL"), known("ENTRY"), known("UNUSED")) == (acme.Whole, acme.Other, None)
    assert made.backend("MYCCL") == ("MYCCL", acme.Whole)


def test_the_spec_comes_before_what_is_installed_and_both_before_ours(acme):
    made = said({"GLOO": "acme.Whole"}, ("gloo", "acme:Other"))
    with pytest.raises(CollectiveError, match=r"and Ray in this process has .*TorchGLOOGroup under that name"):
        made.register()
    backend_registry._global_registry._map.clear()
    assert made.backend("GLOO") == ("GLOO", acme.Whole)


@pytest.mark.parametrize("name", ["GLOO", "DLJ_GLOO"])
def test_our_backend_has_a_name_of_its_own_in_ray(name):
    full, cls = said(group=name).backend(name)
    assert (full, cls.__name__, known("DLJ_GLOO")) == ("DLJ_GLOO", "IsolatedGloo", cls)


def test_a_name_that_nobody_has_is_refused_with_those_that_there_are():
    with pytest.raises(CollectiveError) as caught:
        said({"MYCCL": "acme.Whole"}, group="MYCLL").register()
    assert "there is no collective backend MYCLL" in str(caught.value)
    assert "there are: GLOO, HCCL, MYCCL, NCCL" in str(caught.value)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "acme.Half",
            "it lacks allgather, barrier, broadcast, recv, reduce, reducescatter, send, which Ray's BaseGroup",
        ),
        ("acme.Missing", "acme has no 'Missing'"),
        ("nowhere.Group", "No module named 'nowhere'"),
        ("acme.NO", "acme.NO is a int, which cannot be called"),
        ("json.dumps", "it is no subclass of ray.util.collective's BaseGroup"),
    ],
)
def test_a_backend_that_cannot_be_used_is_refused_with_the_reason(path, words):
    with pytest.raises(CollectiveError) as caught:
        said({"MYCCL": path}).register()
    assert f"collective backend MYCCL ({path}, spec.collectives.backends) cannot be used: {words}" in str(caught.value)


def test_two_backend_classes_of_one_name_are_refused(acme):
    said({"MYCCL": "acme.Whole"}).register()
    with pytest.raises(CollectiveError, match=r"MYCCL is acme.Other .*, and Ray in this process has .*Whole"):
        said({"MYCCL": "acme.Other"}).register()


def test_a_rank_that_cannot_register_its_backend_ends_for_good(monkeypatch):
    for path, kind in (("nowhere.Group", "ImportError"), ("acme.Half", "TypeError")):
        monkeypatch.setenv(COLLECTIVES, json.dumps({"backends": {"X": path}, "groups": {}}))
        with pytest.raises(EntrypointError, match=r"role r: collective backend X") as caught:
            register_for_rank("r")
        assert caught.value.kind == kind
    monkeypatch.delenv(COLLECTIVES)
    register_backends()
    assert module.table() == Table({}, {})
