"""Ray's dashboard through the command: its answers as they are, and no path that leads elsewhere."""

from __future__ import annotations

import asyncio

import pytest

from dljob.errors import UnreachableError
from dljob.report.live.ray_app import POLICY, RayApp, is_plain
from dljob.report.live.server import PageAnswer, PageRequest

BODIES = {
    "/": b"<!doctype html>",
    "/static/main.js": b"x()",
    "/api/version": b'{"version": 1}',
    "/logs?f=1&f=2": b"plain",
}


def ask(target: str) -> tuple[int, bytes]:
    if target == "/away":
        raise UnreachableError("the head is away")
    return (200, BODIES[target]) if target in BODIES else (404, b"")


def said(path: str, search: str = "") -> PageAnswer:
    return asyncio.run(RayApp(ask)(PageRequest(path, {}, search)))


@pytest.mark.parametrize(
    ("path", "search", "kind"),
    [
        ("/", "", "text/html; charset=utf-8"),
        ("/static/main.js", "", "javascript"),
        ("/api/version", "", "application/json"),
        ("/logs", "f=1&f=2", "text/plain; charset=utf-8"),
    ],
)
def test_an_answer_of_the_dashboard_gets_its_kind_and_the_policy(path: str, search: str, kind: str) -> None:
    found = said(path, search)
    assert found.status == 200
    assert found.kind.endswith(kind)
    assert found.headers == {"Content-Security-Policy": POLICY}


def test_errors_of_the_dashboard_and_its_silence_are_told() -> None:
    assert said("/nowhere").status == 404
    away = said("/away")
    assert (away.status, away.body) == (503, b'{"error": "the head is away"}')


@pytest.mark.parametrize(
    "path",
    [
        "/../../secrets", "/a/../../b", "/%2e%2e/secrets", "/.%2E/x", "/a%2f..%2fb", "/a%2Fb", "/..", "/a\\b",
        "/%5c..%5c", "/a?b", "/a#b", "/a b", "/a\r\nX: y", "/ü", "",
    ],
)  # fmt: skip
def test_a_path_that_could_leave_the_dashboard_is_refused(path: str) -> None:
    assert not is_plain(path)
    assert said(path).status == 400


@pytest.mark.parametrize("path", ["/", "/api/v0/tasks", "/static/js/main.1a2b.js", "/a..b/c", "/nodes/%20x"])
def test_paths_of_the_dashboard_pass(path: str) -> None:
    assert is_plain(path)
