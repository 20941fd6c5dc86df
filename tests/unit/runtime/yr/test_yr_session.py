"""The connection to an openYuanrong cluster: one for the whole process."""

from __future__ import annotations

from typing import Any

import pytest

from dljob.errors import UsageError
from dljob.runtime.yr import keys, session
from dljob.runtime.yr.session import Session


@pytest.fixture
def joins(monkeypatch: pytest.MonkeyPatch) -> list[Session]:
    """The connections that are made; without the SDK."""
    made: list[Session] = []

    def join(sdk: Any, kv: Any) -> Session:
        made.append(Session(sdk, False, kv, lambda: "n", list))
        return made[-1]

    monkeypatch.setattr(session, "_session", None)
    monkeypatch.setattr(session, "_sdk", lambda: None)
    monkeypatch.setattr(session, "_joined", join)
    monkeypatch.setattr(keys, "connected", keys.LocalKeyValue)
    return made


def test_a_cluster_is_joined_once_and_its_connection_shared(joins, monkeypatch):
    monkeypatch.setenv(session.ADDRESS, "127.0.0.1:1")
    first = session.cluster()
    assert session.cluster() is first
    assert joins == [first]


def test_a_process_without_an_address_joins_no_cluster(joins, monkeypatch):
    monkeypatch.delenv(session.ADDRESS, raising=False)
    with pytest.raises(UsageError, match="YR_SERVER_ADDRESS is not set"):
        session.cluster()
    assert joins == []
