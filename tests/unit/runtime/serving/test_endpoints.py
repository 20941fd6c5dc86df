"""The servers of a role: those that are ready now, each change, and the choice of one."""

from __future__ import annotations

import json
import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from dljob.errors import CallTimeoutError, NotFoundError, UnreachableError, UsageError
from dljob.runtime.process import context
from dljob.runtime.serving import endpoints as module
from dljob.runtime.serving.endpoints import (
    Endpoint,
    EndpointFeed,
    EndpointFile,
    Endpoints,
    chosen_by_key,
    endpoints,
    least_loaded,
    one_line,
    write_table,
)


class Master:
    """PrimeMaster: answers each question once its table is not that of the asker."""

    def __init__(self, *ranks: int) -> None:
        self.lock = threading.Lock()
        self.waiting: list[tuple[Any, Future[Any]]] = []
        self.table = table(*ranks)
        self.errors = 0

    def ask(self, what: str, args: Any, _timeout_s: float) -> Future[Any]:
        assert what == "endpoints"
        answer: Future[Any] = Future()
        with self.lock:
            if self.errors:
                self.errors -= 1
                answer.set_exception(UnreachableError("it restarts"))
            elif args[0] == self.table:
                self.waiting.append((args[0], answer))
            else:
                answer.set_result(self.table)
        return answer

    def now(self, *ranks: int, **others: Any) -> None:
        with self.lock:
            self.table, waiting = {**table(*ranks), **others}, self.waiting
            self.waiting = []
        for _, answer in waiting:
            answer.set_result(self.table)


def table(*ranks: int) -> dict[str, Any]:
    rows = [{"rank": rank, "incarnation": 1, "addresses": {"http": f"h:{rank}", "rpc": "h:9"}} for rank in ranks]
    return {"rollout": rows}


def found(*ranks: int) -> tuple[Endpoints, Master]:
    master = Master(*ranks)
    return Endpoints("rollout", EndpointFeed(master)), master


def numbers(ready: Any) -> list[int]:
    return [one.rank for one in ready]


def test_the_ready_ranks_are_those_of_now():
    own, master = found(0, 2)
    assert (numbers(own), len(own)) == ([0, 2], 2)
    changes = own.changes(timeout=20)
    assert numbers(next(changes)) == [0, 2]
    master.now(2)
    assert numbers(next(changes)) == [2]
    assert numbers(own.ready()) == [2]


def test_changes_end_after_a_time_without_one():
    own, _ = found(0)
    assert [numbers(each) for each in own.changes(timeout=0)] == [[0]]


def test_a_change_of_another_role_is_no_change():
    own, master = found(0)
    changes = own.changes(timeout=20)
    next(changes)
    later: list[Any] = []
    thread = threading.Thread(target=lambda: later.append(next(changes)))
    thread.start()
    master.now(0, other=[])
    own.feed.wait(table(0), 20)
    master.now(0, 1, other=[])
    thread.join(20)
    assert numbers(later[0]) == [0, 1]


def test_an_endpoint_has_an_address_and_urls():
    (one,) = found(3)[0]
    assert (one.address, one.url("/health"), one.url(port="rpc")) == ("h:3", "http://h:3/health", "http://h:9")
    assert hash(one) == hash(Endpoint("rollout", 3, 1, {}))


def test_an_unknown_role_is_refused_with_those_that_exist():
    with pytest.raises(NotFoundError, match="no such role with ports") as error:
        Endpoints("x", EndpointFeed(Master(0)))
    assert error.value.hint == "roles with ports: rollout"


def test_ranks_are_picked_one_after_another_by_load_or_by_key():
    own, _ = found(0, 1)
    assert numbers([own.pick() for _ in range(4)]) == [0, 1, 0, 1]
    first = own.pick(without=())
    assert own.pick(without=[first]) != first
    assert own.pick(without=list(own)), "all were tried"
    assert len({own.pick(key="session 7").rank for _ in range(5)}) == 1
    with own.using() as one, own.using() as two:
        assert {one.rank, two.rank} == {0, 1}
        with own.using(), own.using():
            pass
    assert own._load == {}


def test_few_keys_move_when_a_rank_goes():
    ready = list(found(0, 1, 2)[0])
    keys = [f"k{i}" for i in range(300)]
    before = {key: chosen_by_key(ready, key).rank for key in keys}
    after = {key: chosen_by_key(ready[:2], key).rank for key in keys}
    assert all(after[key] == rank for key, rank in before.items() if rank != 2)
    assert set(before.values()) == {0, 1, 2}


def test_equal_loads_take_turns():
    ready = list(found(0, 1, 2)[0])
    assert [least_loaded(ready, {(0, 1): 1}, turn).rank for turn in range(4)] == [1, 2, 1, 2]


def test_a_pick_waits_until_a_rank_is_ready():
    own, master = found()
    picked: list[Endpoint] = []
    thread = threading.Thread(target=lambda: picked.append(own.pick(timeout=None)))
    thread.start()
    master.now(5)
    thread.join(20)
    assert numbers(picked) == [5]


def test_a_pick_ends_at_its_deadline():
    own, _ = found()
    with pytest.raises(CallTimeoutError, match="no rank of rollout was ready within 0 s"):
        own.pick(timeout=0)
    with pytest.raises(CallTimeoutError):
        own.pick(timeout=0.01)


def test_the_last_table_stays_while_the_master_restarts(monkeypatch):
    monkeypatch.setattr(module, "RETRY_S", 0)
    master = Master(0)
    feed = EndpointFeed(master)
    assert feed.refresh() == table(0)
    assert feed.refresh() == table(0), "it is still so"
    master.errors = 2
    own = Endpoints("rollout", feed)
    master.now(0, 1)
    feed.wait(table(0), 20)
    assert numbers(own) == [0, 1]


def test_the_file_has_the_newest_table(tmp_path):
    path = tmp_path / "endpoints" / "r-0.json"
    feed = EndpointFeed(Master(0), path)
    feed.table()
    assert json.loads(path.read_text()) == table(0)
    write_table(path, table(1))
    assert json.loads(path.read_text()) == table(1)
    assert one_line(table(1, 2)["rollout"]) == "h:1,h:2"


def test_a_file_that_cannot_be_written_for_a_while_is_written_later(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_S", 0)
    written: queue.Queue[Any] = queue.Queue()
    refusals = iter([False, True, True])

    def write(_path: Path, rows: Any) -> None:
        if next(refusals, False):
            raise OSError(28, "No space left on device")
        written.put(rows)

    monkeypatch.setattr(module, "write_table", write)
    master = Master(0)
    feed = EndpointFeed(master, tmp_path / "r-0.json")
    feed.table()
    assert written.get(timeout=20) == table(0)
    master.now(0, 1)
    assert feed.wait(table(0), 20), "those who wait in this process are told"
    assert written.get(timeout=20) == table(0, 1)
    master.now(2)
    assert written.get(timeout=20) == table(2), "further changes are followed"
    (warning,) = [one.getMessage() for one in caplog.records if "cannot write" in one.getMessage()]
    assert warning.startswith(f"cannot write the endpoints to {tmp_path / 'r-0.json'}")
    assert "No space left on device" in warning


def test_an_answer_that_fails_unexpectedly_does_not_end_the_follower(monkeypatch, caplog):
    monkeypatch.setattr(module, "RETRY_S", 0)
    master = Master(0)
    ask, failures = master.ask, iter([False, True])

    def ask_or_fail(what: str, args: Any, timeout_s: float) -> Future[Any]:
        if next(failures, False):
            raise ValueError("a damaged answer")
        return ask(what, args, timeout_s)

    monkeypatch.setattr(master, "ask", ask_or_fail)
    own = Endpoints("rollout", EndpointFeed(master))
    master.now(0, 1)
    assert own.feed.wait(table(0), 20)
    assert numbers(own) == [0, 1]
    assert "cannot follow the endpoints" in caplog.text


def test_a_process_has_one_feed_for_all_roles(monkeypatch):
    monkeypatch.setattr(context, "_current", cast("Any", type("Rank", (), {"calls": Master(4)})()))
    monkeypatch.setattr(module, "_feeds", {})
    one, two = endpoints("rollout"), endpoints("rollout")
    assert one.feed is two.feed
    assert numbers(one) == [4]


def test_a_process_that_is_no_rank_reads_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_feeds", {})
    monkeypatch.setattr(module, "FILE_POLL_S", 0.001)
    monkeypatch.setattr(context, "_current", None)
    for name in ("DLJOB_HOST_SOCKET", "DLJOB_ENDPOINTS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="no rank of a DLJob"):
        endpoints("rollout")
    path = tmp_path / "endpoints.json"
    monkeypatch.setenv("DLJOB_ENDPOINTS", str(path))
    with pytest.raises(UnreachableError, match=r"the file of endpoints .*endpoints\.json, in DLJOB_ENDPOINTS"):
        endpoints("rollout")
    write_table(path, table(1))
    changes = endpoints("rollout").changes(timeout=20)
    assert numbers(next(changes)) == [1]
    write_table(path, table(1, 2))
    assert numbers(next(changes)) == [1, 2]


def test_the_file_answers_at_its_time_without_a_change(tmp_path):
    write_table(path := tmp_path / "e.json", table(1))
    assert EndpointFile(path).ask("endpoints", (table(1),), 0.0).result(0) == table(1)


async def test_a_coroutine_can_wait_for_a_change():
    own, master = found(0)
    seen, _ = own.look()
    one, given_up = own.feed.on_change(seen), own.feed.on_change(seen)
    given_up.cancel()
    later = own.feed.on_change(seen)
    own.feed.on_change(seen).cancel()
    master.now(1)
    assert (one.result(20), later.result(20)) == (None, None)
    assert own.feed.on_change(seen).done(), "it has changed already"
