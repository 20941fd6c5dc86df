"""Streams of completions over real sockets: they go on at another server, and give the tokens of an undisturbed run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from completion_server import undisturbed

from dljob.runtime.serving import completion_stream as module
from dljob.runtime.serving.completion_stream import CompletionStream
from dljob.runtime.serving.endpoints import Endpoints

KIT = Path(__file__).parents[3] / "kits" / "completion_server.py"
PROMPT = [3, 1, 4]


class FixedTable:
    """Endpoints that change only when told so."""

    def __init__(self, *addresses: str) -> None:
        self.rows = {
            "rollout": [
                {"rank": rank, "incarnation": 1, "addresses": {"http": address}}
                for rank, address in enumerate(addresses)
            ]
        }

    def table(self) -> Any:
        return self.rows

    def wait(self, seen: Any, seconds: float | None) -> bool:
        return False


@contextmanager
def process(die_at: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    child = subprocess.Popen([sys.executable, str(KIT), str(die_at)], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    try:
        yield f"127.0.0.1:{child.stdout.readline().strip()}", child
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_a_killed_server_costs_no_token_and_none_is_doubled(monkeypatch: pytest.MonkeyPatch) -> None:
    with process(7) as (first, child), process(0) as (second, _):
        monkeypatch.setattr(module, "endpoints", lambda role: Endpoints(role, FixedTable(first, second)))
        stream = CompletionStream("rollout", {"prompt": PROMPT, "max_tokens": 30})
        ids = [each for chunk in stream for each in chunk.token_ids]
        assert child.wait(20) == -9
    assert ids == undisturbed(PROMPT, 30)
    assert [(part.callee, part.first, part.count) for part in stream.segments] == [
        ("rollout/0", 0, 7),
        ("rollout/1", 7, 23),
    ]
