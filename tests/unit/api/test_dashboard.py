"""The dashboard of a Ray elsewhere is asked with Ray's token; a job's own Ray has none."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from dljob.api.local import dashboard
from dljob.api.local.dashboard import dashboard_of
from dljob.api.registry import RegistryEntry
from dljob.errors import UnreachableError, UsageError


class Dashboard(http.server.BaseHTTPRequestHandler):
    """Tells the token that it was asked with."""

    def do_GET(self) -> None:
        self.send_response({"/gone": 404, "/away": 302}.get(self.path, 200))
        self.send_header("Location", "http://127.0.0.1:1/")
        self.end_headers()
        self.wfile.write(f"{self.path} {self.headers['Authorization']}".encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        monkeypatch.setattr(dashboard, "PORT", server.server_port)
        thread = threading.Thread(target=lambda: server.serve_forever(0.02))
        thread.start()
        yield
        server.shutdown()
        thread.join()


def record(address: str = "127.0.0.1:6379", **environment: str) -> RegistryEntry:
    return RegistryEntry("x", "u" * 32, "/d", address, tuple(environment.items()))


@pytest.mark.usefixtures("served")
def test_the_token_goes_to_the_dashboard_and_redirects_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0k3n\n")
    ask = dashboard_of(record(RAY_AUTH_TOKEN_PATH=str(tmp_path / "token")))
    assert ask("/a?b=1") == (200, b"/a?b=1 Bearer t0k3n")
    assert ask("/gone")[0] == 404
    assert ask("/away")[0] == 302
    assert dashboard_of(record(RAY_AUTH_TOKEN="other"))("/") == (200, b"/ Bearer other")
    assert dashboard_of(record(RAY_AUTH_TOKEN_PATH=str(tmp_path / "none")))("/") == (200, b"/ None")


@pytest.mark.usefixtures("served")
def test_a_head_of_this_machine_may_have_its_dashboard_on_the_loopback_alone() -> None:
    # Another address of this machine, where nothing listens.
    assert dashboard_of(record("127.0.0.2:6379"))("/a")[0] == 200
    # An address of another machine, which no packet reaches.
    with pytest.raises(UnreachableError, match=r"no dashboard answers at 0\.0\.0\.1"):
        dashboard_of(record("0.0.0.1:6379"))("/a")


@pytest.mark.usefixtures("served")
def test_another_users_program_on_the_port_gets_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "users_of", lambda _port: frozenset({os.getuid(), 0}))
    ask = dashboard_of(record(RAY_AUTH_TOKEN="t0k3n"))
    assert ask("/a")[0] == 200
    monkeypatch.setattr(dashboard, "users_of", lambda _port: frozenset({os.getuid(), 4711}))
    with pytest.raises(UnreachableError, match=r"another user's program \(uid 4711\).*would get Ray's token"):
        ask("/a")


def test_a_job_with_a_ray_of_its_own_has_no_dashboard() -> None:
    with pytest.raises(UsageError, match="one of its own, which has no dashboard"):
        dashboard_of(RegistryEntry("x", "u" * 32, "/d", runner=1))


def test_a_dashboard_that_does_not_answer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "PORT", 1)
    with pytest.raises(UnreachableError, match=r"no dashboard answers at 127\.0\.0\.1:1"):
        dashboard_of(RegistryEntry("x", "u" * 32, "/d"))("/api/version")
