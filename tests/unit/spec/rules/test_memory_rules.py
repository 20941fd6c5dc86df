"""More memory for ranks that run out of it: what may be asked for, and the words where it may not."""

from __future__ import annotations

import pytest

from dljob.errors import SpecError
from dljob.spec.loading.load import parse
from dljob.spec.quantity import GRAIN, parse_factor


def job(memory: str | None, **policy: object) -> dict[str, object]:
    role = {
        "name": "a",
        "entrypoint": {"class": "app.A"},
        "resources": {"memory": memory} if memory else {},
        "restartPolicy": {"outOfMemory": policy},
    }
    return {"apiVersion": "dljob.io/v1alpha1", "kind": "DLJob", "metadata": {"name": "j"}, "spec": {"roles": [role]}}


def refused(data: dict[str, object]) -> str:
    with pytest.raises(SpecError) as caught:
        parse(data)
    return str(caught.value)


def test_the_memory_policy_is_off_by_default_and_grows_by_half() -> None:
    policy = parse(job("4Gi", maxMemory="8Gi")).spec.roles[0].restart_policy.out_of_memory
    assert policy is not None
    assert (policy.memory_factor, policy.max_memory) == ("1.5", "8Gi")
    data = job("4Gi", maxMemory="8Gi")
    data["spec"]["roles"][0].pop("restartPolicy")  # type: ignore[index]
    assert parse(data).spec.roles[0].restart_policy.out_of_memory is None


def test_a_role_without_memory_has_none_to_be_multiplied() -> None:
    said = refused(job(None, maxMemory="8Gi"))
    assert "outOfMemory needs resources.memory: a declares no memory, so none can be added" in said


@pytest.mark.parametrize("most", ["4Gi", "4095Mi"])
def test_max_memory_must_be_more_than_the_memory(most: str) -> None:
    assert f"maxMemory must be above resources.memory: {most} is not above 4Gi" in refused(job("4Gi", maxMemory=most))


def test_a_memory_policy_without_max_memory_is_refused() -> None:
    assert "maxMemory" in refused(job("4Gi", memoryFactor="2"))


@pytest.mark.parametrize("factor", ["1", "1.0", "1.00", "0.5", "10", "-2", "2x", ""])
def test_a_memory_factor_outside_one_to_ten_is_refused(factor: str) -> None:
    assert 'a number above 1 and below 10, such as "1.5"' in refused(job("4Gi", maxMemory="8Gi", memoryFactor=factor))


def test_a_number_without_quotes_is_told_to_have_some() -> None:
    assert '"1.5"' in refused(job("4Gi", maxMemory="8Gi", memoryFactor=1.5))


@pytest.mark.parametrize(("text", "factor"), [("1.01", 1.01), ("1.5", 1.5), ("1.50", 1.5), ("2", 2), ("9.99", 9.99)])
def test_a_memory_factor_is_read_exactly(text: str, factor: float) -> None:
    assert parse(job("4Gi", maxMemory="8Gi", memoryFactor=text))
    assert parse_factor(text) == round(factor * GRAIN)
