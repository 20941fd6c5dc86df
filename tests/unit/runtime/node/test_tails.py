"""Ends of logs: which ranks, how much of each, and never half a character."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dljob.errors import NotFoundError, UnreachableError
from dljob.runtime.node import log_tails
from dljob.runtime.node.log_tails import complete, last, order, read_ends, read_from, share


def row(role: str, rank: int, phase: str = "Ready", node: str = "n") -> dict[str, Any]:
    return {"role": role, "rank": rank, "phase": phase, "node": node}


def names(rows: Any) -> list[str]:
    return [f"{r['role']}/{r['rank']}" for r in rows]


# -- which


def test_the_rank_that_failed_comes_first_then_others_that_failed_then_first_ranks():
    ranks = [row("a", 0), row("a", 1), row("b", 0), row("b", 1, "Failed"), row("b", 2)]
    assert names(order({"ranks": ranks, "lastFault": {"target": "b/2"}})) == ["b/2", "b/1", "a/0", "b/0", "a/1"]
    assert names(order({"ranks": ranks, "lastFault": {"target": "b"}}))[0] == "b/1"
    assert names(order({"ranks": ranks, "lastFault": None})) == ["b/1", "a/0", "b/0", "a/1", "b/2"]


# -- how much


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(0, 5000))
def test_a_budget_is_shared_fairly_and_used_up(sizes, budget):
    given_ = share(sizes, budget)
    assert sum(given_) <= budget
    assert all(got <= size for got, size in zip(given_, sizes, strict=True))
    short = [got for got, size in zip(given_, sizes, strict=True) if got < size]
    if short:
        assert max(given_) <= min(short) + 1, "nobody has more than one who wants more"
        assert budget - sum(given_) < len(short), "nothing is left while somebody wants more"


def test_budget_left_by_short_logs_goes_to_long_ones():
    assert share([10, 1000, 1000], 610) == [10, 300, 300]


@given(st.lists(st.integers(0, 2000), max_size=30), st.integers(0, 5000))
def test_each_log_with_room_gets_a_tail_worth_reading(sizes, budget):
    room = log_tails.fit(sizes, budget)
    for got, size in zip(share(sizes[:room], budget), sizes, strict=False):
        assert got >= min(size, log_tails.LEAST_BYTES)
    assert room == len(sizes) or sum(min(size, log_tails.LEAST_BYTES) for size in sizes[: room + 1]) > budget


# -- text


@given(st.text(max_size=60), st.integers(0, 80))
def test_a_tail_is_the_end_and_fits(text, limit):
    got = last(text.encode(), limit)
    assert text.endswith(got)
    assert len(got.encode()) <= limit
    assert len(got.encode()) > min(limit, len(text.encode())) - 4, "no more than a character is given up"


@given(st.binary(max_size=60), st.integers(0, 80))
def test_any_bytes_make_a_tail_that_fits(data, limit):
    assert len(last(data, limit).encode()) <= limit


@given(st.text(max_size=20), st.integers(0, 3))
def test_a_character_that_is_still_being_written_waits(text, missing):
    data = text.encode()
    cut = data[: len(data) - missing]
    kept = complete(cut)
    assert cut.startswith(kept)
    assert kept.decode() == cut.decode(errors="ignore")


def test_bytes_that_are_no_utf8_do_not_wait_for_ever():
    assert complete(b"abc\xff\x80\x80\x80\x80") == b"abc\xff\x80\x80\x80\x80"
    assert complete(b"") == b""


# -- files


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a-0.log").write_bytes(b"0123456789")
    return tmp_path


def test_tails_of_files_come_with_their_sizes(folder):
    assert read_ends(str(folder), ["a-0", "a-1"], 4) == [(10, b"6789"), (-1, b"")]


def test_a_path_that_is_no_plain_file_is_no_log(folder):
    (folder / "secret").write_text("x")
    (folder / "logs" / "a-1.log").symlink_to(folder / "secret")
    os.mkfifo(folder / "logs" / "a-2.log")
    assert read_ends(str(folder), ["a-1", "a-2"], 4) == [(-1, b""), (-1, b"")]


def test_a_log_is_read_on_from_where_one_was(folder):
    log = str(folder / "logs" / "a-0.log")
    assert read_from(log, None, 4) == (10, b"6789", 6)
    assert read_from(log, 3, 4) == (10, b"3456", 3)
    assert read_from(log, 10, 4) == (10, b"", 10)
    assert read_from(log, 11, 4) == (10, b"0123", 0), "it is another log now: from its start"


# -- over nodes


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    """Nodes n, and a dead one; what is asked of them is answered from the folder."""

    async def on_node(node: str, function: Any, *args: Any) -> Any:
        if node == "dead":
            raise RuntimeError("the node is gone\nand more")
        return function(*args)

    monkeypatch.setattr(log_tails, "on_node", on_node)
    return folder


async def test_logs_of_all_ranks_are_gathered_with_a_notice_for_lost_nodes(nodes):
    ranks = [row("a", 0), row("a", 1), row("a", 2, node="dead"), row("a", 3, node="")]
    got = await log_tails.gather(nodes, {"ranks": ranks}, 10_000)
    assert got["cut"] == []
    assert got["logs"]["a/0"] == "0123456789"
    assert got["logs"]["a/2"] == "[dljob] the log on its node cannot be read: the node is gone\n"
    assert got["logs"].keys() == {"a/0", "a/2"}, "who never wrote has no log"


async def test_a_node_that_does_not_answer_in_time_costs_only_its_own_logs(nodes, monkeypatch):
    answers = log_tails.on_node

    async def on_node(node: str, function: Any, *args: Any) -> Any:
        if node == "frozen":
            await asyncio.Event().wait()
        return await answers(node, function, *args)

    monkeypatch.setattr(log_tails, "on_node", on_node)
    monkeypatch.setattr(log_tails, "WITHIN_S", 0.1)
    got = await log_tails.gather(nodes, {"ranks": [row("a", 0), row("a", 1, node="frozen")]}, 10_000)
    assert got["logs"]["a/0"] == "0123456789"
    assert got["logs"]["a/1"] == "[dljob] the log on its node cannot be read: no answer within 0.1 s\n"


async def test_the_masters_log_gives_whole_entries_within_its_share(nodes):
    log = nodes / "logs" / "master.log"
    entries = [f'{{"message": "{n:03}"}}\n' for n in range(100)]
    snapshot = {"ranks": [row("a", 0)], "masterNode": "n"}
    assert (await log_tails.gather(nodes, snapshot, 10_000))["master"] == "", "it has written none"
    log.write_text("".join(entries))
    assert (await log_tails.gather(nodes, snapshot, 10 * 1900))["master"] == "".join(entries)
    short = (await log_tails.gather(nodes, snapshot, 4_000))["master"]
    assert short == "".join(entries[-(4_000 // log_tails.MASTER_SHARE // len(entries[0])) :])
    (nodes / "logs" / "a-0.log").write_text("x" * 10_000)
    both = await log_tails.gather(nodes, snapshot, 4_000)
    assert len(both["logs"]["a/0"]) + len(both["master"]) == 4_000
    lost = (await log_tails.gather(nodes, {**snapshot, "masterNode": "dead"}, 4_000))["master"]
    assert lost == "[dljob] the log on its node cannot be read: the node is gone\n"


async def test_logs_of_a_lost_node_come_from_the_volume(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("DLJOB_CHECKPOINT", str(tmp_path / "ckpt"))
    for name in ("attempt-1/a-2.10", "attempt-2/a-2.9", "attempt-2/a-2.10", "attempt-2/a-22.11"):
        path = tmp_path / "ckpt" / nodes.name / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    got = await log_tails.gather(nodes, {"ranks": [row("a", 2, node="dead"), row("a", 3, node="dead")]}, 10_000)
    lost = "[dljob] the log on its node cannot be read: the node is gone\n"
    assert got["logs"] == {"a/2": f"attempt-2/a-2.10\n{lost}", "a/3": lost}


async def test_ranks_without_room_are_named(nodes):
    for rank in range(5):
        (nodes / "logs" / f"a-{rank}.log").write_text("x" * 10 if rank == 2 else "x" * 1000)
    ranks = [row("a", rank) for rank in range(9)]
    got = await log_tails.gather(nodes, {"ranks": ranks}, 2 * log_tails.LEAST_BYTES + 10)
    assert {name: len(text) for name, text in got["logs"].items()} == {"a/0": 512, "a/1": 512, "a/2": 10}
    assert got["cut"] == ["a/3", "a/4"], "who wrote nothing misses nothing"


async def test_all_tails_together_keep_within_the_budget(nodes):
    for rank in range(8):
        (nodes / "logs" / f"a-{rank}.log").write_text("ä" * 5000 + f"end {rank}\n")
    got = await log_tails.gather(nodes, {"ranks": [row("a", rank) for rank in range(8)]}, 8001)
    sizes = [len(text.encode()) for text in got["logs"].values()]
    assert 7900 < sum(sizes) <= 8001
    assert max(sizes) - min(sizes) <= 2
    assert all(text.endswith(f"end {rank}\n") for rank, text in enumerate(got["logs"].values()))


async def part_of(nodes: Path, own: log_tails.Row, offset: int | None, limit: int) -> log_tails.Part:
    return await log_tails.read(log_tails.on_node, log_tails.of_rank(nodes, own), offset, limit)


async def test_one_log_in_pieces_is_the_whole_log(nodes):
    text = "grüße 🙂 und mehr\n" * 20
    (nodes / "logs" / "a-0.log").write_text(text)
    offset, seen = 0, ""
    while (part := await part_of(nodes, row("a", 0), offset, 7)).text:
        offset, seen = part.offset, seen + part.text
    assert seen == text
    assert part.size == len(text.encode())
    assert (await part_of(nodes, row("a", 0), None, 10)).text == text[-10:]


async def test_a_log_that_cannot_be_had_is_no_text(nodes):
    with pytest.raises(UnreachableError, match=r"^the log on its node cannot be read: the node is gone$"):
        await part_of(nodes, row("a", 0, node="dead"), 0, 10)
    with pytest.raises(NotFoundError, match="no log of a/1 on its node"):
        await part_of(nodes, row("a", 1), None, 10)
    with pytest.raises(NotFoundError, match="no log of a/0: it is on no node"):
        await part_of(nodes, row("a", 0, node=""), 0, 10)


# -- a node that came just now


class UnknownError(Exception):
    """As Ray's, when the raylet that was asked has not heard of the node."""


async def test_a_node_that_lives_is_asked_again_until_the_raylet_knows_of_it():
    answers: list[Any] = [UnknownError("no such node"), UnknownError("no such node"), "the log"]

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await log_tails.retry_unknown_node(ask, (UnknownError,), lambda: True) == "the log"
    assert answers == []


async def test_a_node_that_is_gone_is_not_asked_again_and_other_errors_are_told():
    asked: list[int] = []

    async def ask() -> str:
        asked.append(1)
        raise UnknownError("no such node") if len(asked) == 1 else ValueError("torn")

    with pytest.raises(UnknownError):
        await log_tails.retry_unknown_node(ask, (UnknownError,), lambda: False)
    assert asked == [1]
    with pytest.raises(ValueError, match="torn"):
        await log_tails.retry_unknown_node(ask, (UnknownError,), lambda: True)
