"""The memory of a rank's copies: two of them are enough, and none goes that is nowhere else."""

from __future__ import annotations

import pytest
from checkpoint_kit import a_saver, client, copies, place

from dljob.errors import UsageError
from dljob.runtime.checkpoint import client as client_module


def room_for_one_rank(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let a rank have new memory only when there is no other memory of its name."""

    def check(whose: str, _size: int) -> None:
        if copies(name):
            raise UsageError(f"{whose}: no room")

    monkeypatch.setattr(client_module, "check_room", check)


def test_two_copies_of_memory_are_enough_for_a_restart_and_for_a_state_that_grows(tmp_path, monkeypatch):
    room_for_one_rank(monkeypatch, "tight/0")
    with a_saver() as (saver, _):
        for number in (1, 2, 3):
            mine = client(place(saver, tmp_path, name="tight/0", number=number, incarnation=number))
            assert (mine.load() or (0,))[0] == 2 * (number - 1)
            mine.save(2 * number - 1, {"a": b"x"}, persist=False)
            mine.save(2 * number, {"a": b"x" * (1 << 20)}, persist=False)
            mine.close()
        assert not saver.keeper._needed, "nor did the copies of other nodes have to go"


def test_memory_is_not_given_back_while_a_copy_in_it_is_nowhere_else(tmp_path, monkeypatch):
    room_for_one_rank(monkeypatch, "alone/0")
    with a_saver() as (saver, _):
        first = client(place(saver, tmp_path, name="alone/0", save_on_exit=False))
        first.save(1, {"a": 1}, persist=False)
        with pytest.raises(UsageError, match="no room"):
            first.save(2, {"a": b"x" * (1 << 20)}, persist=False)
        first.close(wait=False)
        second = client(place(saver, tmp_path, name="alone/0", number=2, incarnation=2, save_on_exit=False))
        assert second.load() == (1, {"a": 1})
        with pytest.raises(UsageError, match="no room"):
            second.save(2, {"a": 2}, persist=False)
        assert second.load() == (1, {"a": 1})
        second.close(wait=False)
