"""The store of a role: kept for its first generation, emptied for each later one."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dljob.runtime.worker.elastic_master import RoleStore
from dljob.runtime.worker.torch_group import StaleGenerationError, renew


def client(store: RoleStore) -> TCPStore:
    host, _, port = store.address.rpartition(":")
    return TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=20))


def test_the_first_generation_breaks_no_connection_so_torch_prints_no_warning(capfd) -> None:
    store = RoleStore("127.0.0.1")
    early = client(store)
    renew(store.address, 1)
    renew(store.address, 1)
    early.set("from before", "1")
    assert client(store).get("from before") == b"1"
    assert "recvVector" not in capfd.readouterr().err


def test_a_later_generation_gets_an_empty_store_at_the_same_address() -> None:
    store = RoleStore("127.0.0.1")
    renew(store.address, 1)
    client(store).set("of generation 1", "1")
    renew(store.address, 2)
    assert not client(store).check(["of generation 1"])
    client(store).set("of generation 2", "1")
    renew(store.address, 3)
    assert not client(store).check(["of generation 2"])


def test_a_rank_of_an_earlier_generation_is_refused_and_empties_nothing() -> None:
    store = RoleStore("127.0.0.1")
    renew(store.address, 2)
    client(store).set("of generation 2", "1")
    with pytest.raises(StaleGenerationError, match="the store serves generation 2; this rank is of 1"):
        renew(store.address, 1)
    assert client(store).check(["of generation 2"])
