"""The search of one request for a server: its pauses and its end, at a clock of the test."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from dljob.runtime.serving.endpoints import Endpoints
from dljob.runtime.serving.http_transport import retry_after
from dljob.runtime.serving.server_search import NoServer, ServerSearch


class SearchClock:
    """A clock that stands until a try or a wait moves it; also the table of servers that are always ready."""

    def __init__(self, servers: int) -> None:
        self.now = 0.0
        rows = [{"rank": rank, "incarnation": 1, "addresses": {"http": f"h:{rank}"}} for rank in range(servers)]
        self.rows = {"rollout": rows}

    def table(self) -> Any:
        return self.rows

    def search(self, timeout: float | None) -> ServerSearch:
        return ServerSearch(Endpoints("rollout", self), timeout, clock=lambda: self.now)  # type: ignore[arg-type]

    def tries(self, search: ServerSearch, *, each_s: float, pause_s: float | None, most: int = 2000) -> int:
        """Ask servers that all fail until the search ends; returns how many were asked."""
        for count in range(most):
            while isinstance(one := search.look(), NoServer):
                if one.wait_s <= 0:
                    return count
                self.now += one.wait_s
            self.now += each_s
            search.failed(one, "it failed", pause_s)
        raise AssertionError(f"{most} tries, and no end at {self.now:g} s")


@pytest.mark.parametrize(
    ("servers", "each_s", "pause_s"),
    [
        pytest.param(2, 0.3, 0.2, id="while one has another version, the pause of the other one ends"),
        pytest.param(2, 5.0, None, id="a connection that times out takes as long as the longest pause"),
        pytest.param(1, 0.01, 0.0, id="no pause at all"),
    ],
)
def test_servers_that_fail_are_asked_until_the_timeout_and_no_longer(servers, each_s, pause_s):
    clock = SearchClock(servers)
    search = clock.search(12.0)
    assert clock.tries(search, each_s=each_s, pause_s=pause_s) > servers
    assert 12.0 <= clock.now <= 12.0 + each_s
    assert "answered within 12 s" in search.nobody()
    search.again()
    assert clock.tries(search, each_s=each_s, pause_s=pause_s) > 0, "the time begins anew"


def test_a_server_that_was_not_asked_yet_is_asked_however_late():
    clock = SearchClock(1)
    search = clock.search(0.0)
    clock.now = 5.0
    assert not isinstance(search.look(), NoServer)


def test_a_retry_after_of_zero_is_no_order_to_ask_without_a_pause():
    def said(words: str) -> float | None:
        return retry_after(httpx.Response(503, headers={"retry-after": words}))

    assert [said(words) for words in ("0", "7", "3600", "tomorrow")] == [0.05, 7.0, 60.0, None]
