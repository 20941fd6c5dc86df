"""`dljob open`: prints a link, opens a browser where there is one, and serves until it is interrupted."""

from __future__ import annotations

import asyncio
import json
import os
import re
import stat
import sys
import urllib.request
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fake_kube import TOKEN, add_head, add_job
from growing_folder import record_answer
from simulated_folder import simulated

from dljob.api.local import dashboard
from dljob.cli import main
from dljob.cli.commands.observe import open as opening
from dljob.errors import UsageError
from dljob.testing.simulate.drive import case_of


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of an ended job of this machine."""
    simulated(tmp_path / "job", case_of(5))
    status = json.loads((tmp_path / "job" / "status.json").read_text())
    place = tmp_path / "home" / "jobs" / f"{status['name']}-{status['uid'][:8]}"
    place.parent.mkdir(parents=True)
    (tmp_path / "job").rename(place)
    entry = {"name": status["name"], "uid": status["uid"], "dir": str(place), "started": 1.0}
    (place / "job.json").write_text(json.dumps({**entry, "environment": {"RAY_AUTH_TOKEN": "t0k3n"}}))
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    return status["name"]


class Visitor:
    """Reads the page by the printed link, and then interrupts the command as Ctrl-C does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page = ""
        self.links: list[str] = []
        monkeypatch.setattr(opening.output, "data", self._printed)

    def _printed(self, text: str) -> None:
        self.links.append(text)
        if len(self.links) == 1:
            asyncio.get_running_loop().create_task(self._visit(text))

    async def _visit(self, link: str) -> None:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self.page = await asyncio.to_thread(lambda: opener.open(link, timeout=10).read().decode())
        raise KeyboardInterrupt


def data_of(page: str) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*)</script>', page)
    assert text
    return json.loads(text[1])


def test_the_link_leads_to_the_page_and_the_token_is_not_on_it(job, monkeypatch, capsys):
    visitor = Visitor(monkeypatch)
    assert main.run(["open", job]) == 0
    assert urlsplit(visitor.links[0]).hostname == "127.0.0.1"
    found = data_of(visitor.page)
    assert (found["source"], found["live"]) == ("data", False)
    assert found["lanes"]
    assert "t0k3n" not in visitor.page
    said = capsys.readouterr().err
    assert "the job is over; the page stays until Ctrl-C" in said
    assert "the page is closed" in said


def test_a_link_is_printed_also_where_a_browser_was_started(job, monkeypatch, capsys):
    opened: list[str] = []
    visitor = Visitor(monkeypatch)
    monkeypatch.setattr(opening, "_shown", lambda link, _folder: opened.append(link) or True)
    assert main.run(["open", job]) == 0
    assert data_of(visitor.page)["source"] == "data"
    assert "if it does not, open this link:" in capsys.readouterr().err
    (link,), (other,) = visitor.links, opened
    assert link != other, "each is good once, and the browser may have used its own"


def test_a_job_of_a_cluster_is_served_too(kube, monkeypatch):
    add_job(kube, "hello", phase="Running")
    visitor = Visitor(monkeypatch)
    assert main.run(["open", "hello", "-k", "--no-browser"]) == 0
    assert data_of(visitor.page)["live"]


def test_a_job_of_a_cluster_is_served_with_the_lanes_of_its_record(kube, tmp_path, monkeypatch):
    simulated(tmp_path / "job", case_of(5))
    add_job(kube, "hello", phase="Running", submissionId="s")
    add_head(kube)
    kube.head["record"] = lambda query: record_answer(
        tmp_path / "job", {name: int(size) for name, size in re.findall(r"([^,:]+):(\d+)", query["have"])}
    )
    visitor = Visitor(monkeypatch)
    assert main.run(["open", "hello", "-k", "--no-browser"]) == 0
    found = data_of(visitor.page)
    assert found["lanes"]
    assert found["job"]["name"] == "hello"


def test_rays_dashboard_is_served_without_its_token(kube, monkeypatch):
    add_job(kube, "hello", phase="Running")
    add_head(kube)
    for part in ("", "version"):
        kube.head[part] = lambda _query, part=part: f"<p>/{part}"
    visitor = Visitor(monkeypatch)
    assert main.run(["open", "hello", "-k", "--ray", "--no-browser"]) == 0
    assert visitor.page == "<p>/"
    assert TOKEN not in visitor.page


def test_a_job_whose_own_ray_has_no_dashboard_is_refused(job, capsys, monkeypatch):
    monkeypatch.setattr(dashboard, "dashboard_of", no_dashboard)
    assert main.run(["open", job, "--ray"]) == 2
    assert "has no dashboard" in capsys.readouterr().err


def no_dashboard(_record: object) -> None:
    raise UsageError("it has no dashboard")


def test_an_unknown_job_has_no_page(job):
    del job
    assert main.run(["open", "nobody"]) == 3


def shown(tmp_path: Path) -> bool:
    return opening._shown("http://127.0.0.1:1/?code=c", tmp_path)


def test_a_browser_gets_the_link_by_a_file_that_only_its_user_can_read(tmp_path, monkeypatch):
    asked: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(webbrowser, "open", lambda url: asked.append(url) or True)
    assert shown(tmp_path)
    file = Path(urlsplit(asked[0]).path)
    assert "code" not in asked[0]
    assert "url=http://127.0.0.1:1/?code=c" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_without_a_graphical_browser_the_link_is_only_printed(tmp_path, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda _url: pytest.fail("a text browser would take the terminal"))
    assert not shown(tmp_path)

    def none(_url: str) -> bool:
        raise webbrowser.Error("none")

    monkeypatch.setattr(webbrowser, "open", none)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not shown(tmp_path)


class Server:
    """Gives a new link for each question."""

    count = 0

    def link(self) -> str:
        self.count += 1
        return f"link {self.count}"


def typed(monkeypatch: pytest.MonkeyPatch, type_: Callable[[int], None]) -> list[str]:
    """Return what was printed while somebody typed on a terminal."""
    printed: list[str] = []
    main_end, other_end = os.openpty()

    async def run() -> None:
        opening._on_enter(Server())  # type: ignore[arg-type]
        type_(main_end)
        await asyncio.sleep(0.1)

    with os.fdopen(other_end) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(opening.output, "data", printed.append)
        asyncio.run(run())
    return printed


def test_enter_prints_another_link(monkeypatch):
    assert typed(monkeypatch, lambda end: os.write(end, b"\n\n") and None) == ["link 1", "link 2"]


def test_a_terminal_that_is_gone_ends_the_links_alone(monkeypatch):
    assert typed(monkeypatch, lambda end: os.write(end, b"\x04") and None) == []


def test_without_a_terminal_nothing_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    opening._on_enter(Server())  # type: ignore[arg-type]


async def test_the_terminal_says_why_a_page_is_no_longer_kept_up_to_date(capsys):
    async def broken() -> None:
        raise KeyError("a bug")

    following = asyncio.create_task(broken())
    await asyncio.wait([following])
    opening._tell_end(following)
    assert capsys.readouterr().err == "error: the page is no longer kept up to date: KeyError: 'a bug'\n"
    following = asyncio.create_task(asyncio.sleep(60))
    following.cancel()
    await asyncio.wait([following])
    opening._tell_end(following)
    assert capsys.readouterr().err == ""
