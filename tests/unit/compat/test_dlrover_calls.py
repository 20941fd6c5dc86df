"""Functions that ranks of DLRover's form export for others to call."""

from __future__ import annotations

from types import ModuleType

import pytest

from dljob.compat.dlrover_api import calls


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "RPC_REGISTRY", {})


class Service:
    @calls.rpc()
    def hello(self) -> str:
        return "hello"


def test_a_function_that_is_exported_alone_is_exported_by_its_module_too() -> None:
    def ping() -> str:
        return "pong"

    module = ModuleType("user")
    module.ping = calls.rpc(export=True)(ping)  # type: ignore[attr-defined]
    calls.export_rpc_instance(None, module)
    service = Service()
    for _ in range(2):
        calls.export_rpc_instance(None, service)
    assert (*calls.RPC_REGISTRY.values(),) == (ping, service.hello)


def test_an_error_names_both_functions_of_one_name_and_keeps_the_first() -> None:
    def first() -> str:
        return "first"

    def second() -> str:
        return "second"

    calls.rpc("ping", export=True)(first)
    with pytest.raises(ValueError, match="RPC method 'ping' already registered") as raised:
        calls.rpc("ping", export=True)(second)
    for function in (first, second):
        line = function.__code__.co_firstlineno
        assert f"test_dlrover_calls.py:{line} in {function.__name__}" in str(raised.value)
    assert calls.RPC_REGISTRY["ping"] is first


def test_two_objects_of_a_class_need_namespaces_to_be_exported() -> None:
    first, second = Service(), Service()
    calls.export_rpc_instance(None, first)
    with pytest.raises(ValueError, match="NAMESPACE") as raised:
        calls.export_rpc_instance(None, second)
    assert repr(first.hello) in str(raised.value)
    assert repr(second.hello) in str(raised.value)
    calls.export_rpc_instance("second", second)
    assert calls.RPC_REGISTRY["hello"] == first.hello
    assert calls.RPC_REGISTRY["second.hello"] == second.hello
