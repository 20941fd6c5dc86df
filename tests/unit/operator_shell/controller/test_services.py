"""Services and EndpointSlices at the API server: made, changed, deleted, and left alone where they are another's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest
from shell_kit import JOB, Shell, shell

from dljob.kube.errors import ApiError
from dljob.reconcile.state.model import Serve
from dljob_operator.controller.observe import OperatorMemory
from dljob_operator.controller.services import ServiceWriter

UID = "uid-1"


def slice_(port: int = 80, uid: str = UID) -> dict[str, Any]:
    return {
        "metadata": {"name": "s-0", "labels": {"dljob.io/uid": uid}},
        "ports": [{"port": port}],
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    }


def serve(body: Any, digest: str = "d1", kind: Literal["Service", "EndpointSlice"] = "EndpointSlice") -> Serve:
    return Serve(kind, "s-0", body, digest)


@pytest.fixture
async def it() -> AsyncIterator[Shell]:
    async with shell() as made:
        yield made


@pytest.fixture
def memory() -> OperatorMemory:
    return OperatorMemory(UID)


async def do(it: Shell, memory: OperatorMemory, action: Serve) -> None:
    await ServiceWriter(it.kube).perform(JOB, memory, action)


def ports(it: Shell) -> list[dict[str, int]]:
    return it.fake.one("endpointslices", "s-0")["ports"]


async def test_a_slice_is_made_changed_and_deleted(it: Shell, memory: OperatorMemory) -> None:
    await do(it, memory, serve(slice_()))
    await do(it, memory, serve(slice_(81), "d2"))
    assert ports(it) == [{"port": 81}]
    assert memory.services == {"EndpointSlice/s-0": "d2"}
    await do(it, memory, serve(None, ""))
    assert (it.fake.objects, memory.services) == ({}, {"EndpointSlice/s-0": ""})
    assert [method for method, _ in it.fake.writes] == ["POST", "PATCH", "PATCH", "DELETE"]


async def test_a_later_operator_changes_what_an_earlier_one_made(it: Shell, memory: OperatorMemory) -> None:
    await do(it, memory, serve(slice_()))
    await do(it, OperatorMemory(UID), serve(slice_(81)))
    assert ports(it) == [{"port": 81}]


async def test_only_the_ports_of_a_service_change(it: Shell, memory: OperatorMemory) -> None:
    meta = {"name": "s-0", "labels": {"dljob.io/uid": UID}}
    for port in (80, 81):
        body = {"metadata": meta, "spec": {"ports": [{"port": port}], **({"type": "ClusterIP"} if port == 80 else {})}}
        await do(it, memory, serve(body, str(port), "Service"))
    # What the API server filled in stays.
    assert it.fake.one("services", "s-0")["spec"] == {"type": "ClusterIP", "ports": [{"port": 81}]}


async def test_what_somebody_deleted_is_made_again(it: Shell, memory: OperatorMemory) -> None:
    await do(it, memory, serve(slice_()))
    it.fake.take("endpointslices", "s-0")
    await do(it, memory, serve(slice_(81), "d2"))
    assert ports(it) == [{"port": 81}]


async def test_an_object_of_another_is_neither_changed_nor_deleted(it: Shell, memory: OperatorMemory) -> None:
    await do(it, OperatorMemory("uid-of-another-job"), serve(slice_(uid="uid-of-another-job")))
    before = it.fake.one("endpointslices", "s-0")
    with pytest.raises(ApiError, match="EndpointSlice s-0 exists already and does not belong to the job") as error:
        await do(it, memory, serve(slice_(81)))
    assert (error.value.status, memory.services) == (409, {})
    await do(it, memory, serve(None, ""))
    assert it.fake.one("endpointslices", "s-0") == before


async def test_deleting_what_was_never_made_is_no_error(it: Shell, memory: OperatorMemory) -> None:
    await do(it, memory, serve(None, ""))
    assert memory.services == {"EndpointSlice/s-0": ""}


@pytest.mark.parametrize("body", [slice_(), None])
async def test_a_refusal_is_told_and_nothing_counts_as_written(it: Shell, memory: OperatorMemory, body: Any) -> None:
    it.fake.fail("*", "endpointslices", 403, message="no right")
    with pytest.raises(ApiError, match="no right"):
        await do(it, memory, serve(body))
    assert memory.services == {}
