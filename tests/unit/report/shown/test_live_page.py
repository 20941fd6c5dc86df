"""The live page follows its server: it shows what changed, says when nobody answers, and when the job has ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import browser
import page_jobs
import pytest

from dljob.report.page import html

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SERVER = """
window.asked = [];
window.fetch = (url) => new Promise((answer, fail) => window.asked.push({url: String(url), answer, fail}));
window.reply = (status, body) => {
  window.asked.at(-1).answer(new Response(status === 204 ? null : JSON.stringify(body), {status}));
};
"""
"""A server in the page's own hands: each question waits in `asked` for its answer."""
STATE = "['live', 'away'].map((id) => document.getElementById(id).textContent).filter(Boolean).join(': ')"


@pytest.fixture
def live(chrome: browser.Browser, tmp_path: Path) -> browser.Browser:
    data = page_jobs.rl_job(ranks=24, hours=1, events=50, incidents=1) | {"live": True, "source": "data", "version": 7}
    data["job"] |= {"phase": "Running", "end": None}
    file = tmp_path / "live.html"
    file.write_text(html(data), encoding="utf-8")
    chrome.open(file.as_uri(), before=SERVER)
    chrome.run("page.ready")
    _until(chrome, "asked.length")
    return chrome


def _until(page: browser.Browser, condition: str) -> None:
    page.run(
        f"new Promise((done) => {{ const look = () => {condition} ? done() : requestAnimationFrame(look); look(); }})"
    )


def _reply(page: browser.Browser, status: int, body: dict[str, Any] | None = None) -> None:
    count = page.run("asked.length")
    page.run(f"reply({status}, {json.dumps(body)})")
    _until(page, f"asked.length > {count} || ['over', 'refused'].includes(live.state)")
    page.settle()


def test_a_change_appears_and_what_was_typed_stays(live: browser.Browser) -> None:
    assert live.run("asked[0].url") == "data?after=7"
    live.press("/")
    live.press("w")
    event = {
        "seq": 51,
        "time": page_jobs.BEGIN + 3700,
        "reason": "Restarting",
        "target": "rollout/1",
        "message": "was killed",
    }
    job = {"name": "rl", "uid": "1", "phase": "Recovering", "start": page_jobs.BEGIN, "restarts": {"Process": 1}}
    _reply(live, 200, {"format": 1, "since": 7, "version": 8, "live": True, "events": [event], "job": job})
    assert live.run("asked.at(-1).url") == "data?after=8"
    assert live.run(STATE) == "live"
    assert live.run("[page.data.events.length, events.found.at(-1), page.data.roles.length]") == [51, 50, 5]
    assert live.run("[document.activeElement.id, document.activeElement.value]") == ["filter", "w"]
    assert live.run("document.querySelector('#top .badge').textContent") == "Recovering"
    assert live.run("page.to") == pytest.approx(event["time"])  # the window follows


def test_new_ends_of_lanes_are_drawn_without_a_new_timeline(live: browser.Browser) -> None:
    live.run("window.box = timeline.box")
    lane = page_jobs.rl_job(ranks=24, hours=1, events=50, incidents=1)["lanes"]["trainer"][0]
    tail = ["trainer", 0, len(lane) - 4, [page_jobs.BEGIN + 3000, 4, page_jobs.BEGIN + 3010, 6]]
    _reply(live, 200, {"since": 7, "version": 8, "events": [], "tails": [tail]})
    assert live.run("page.data.lanes.trainer[0].slice(-4)") == tail[3]
    assert live.run("page.data.lanes.trainer[0].length") == len(lane)
    assert live.run("window.box === timeline.box && timeline.box.isConnected")
    assert live.complaints() == []


def test_a_drag_is_not_broken_by_new_samples(live: browser.Browser) -> None:
    live.run("document.querySelector('.lanes-canvas canvas').scrollIntoView({block: 'center'})")
    box = "document.querySelector('.lanes-canvas canvas').getBoundingClientRect()"
    x, y, wide = live.run(f"((box) => [box.x, box.y, box.width])({box})")
    live.run("window.box = timeline.box")
    live.mouse("mousePressed", x + wide * 0.25, y + 20)
    live.mouse("mouseMoved", x + wide * 0.3, y + 20)
    samples = {"times": [page_jobs.BEGIN + 10], "steps": {"trainer": [[1]]}, "progress": {}}
    _reply(live, 200, {"since": 7, "version": 8, "events": [], "samples": samples})
    assert live.run("window.box.isConnected")
    live.mouse("mouseMoved", x + wide * 0.5, y + 20)
    live.mouse("mouseReleased", x + wide * 0.5, y + 20)
    assert not live.run("window.box.isConnected")
    assert live.run("span() / (page.end - page.start)") == pytest.approx(0.25, rel=0.05)
    assert live.complaints() == []


def test_no_change_asks_again_and_draws_nothing(live: browser.Browser) -> None:
    live.run("window.rows = events.rows")
    _reply(live, 204)
    assert live.run("[asked.length, window.rows === events.rows, events.rows.isConnected]") == [2, True, True]


def test_a_silent_server_is_told_until_it_answers(live: browser.Browser) -> None:
    live.run("asked.at(-1).fail(new TypeError('gone'))")
    _until(live, "live.state === 'off'")
    assert live.run(STATE).startswith("not answering since ")
    assert live.run(STATE).endswith(": the command that served this page")
    _until(live, "asked.length > 1")
    # A long reason takes nothing of the bar's room.
    assert live.run("document.querySelector('#top h1').scrollWidth <= document.querySelector('#top h1').clientWidth")
    live.run("reply(503, {error: 'PrimeMaster restarts', since: 0})")
    _until(live, f"{STATE}.endswith(': PrimeMaster restarts')".replace("endswith", "endsWith"))
    assert live.run(STATE) == "not answering since 00:00:00 UTC: PrimeMaster restarts"
    _until(live, "asked.length > 2")
    _reply(live, 204)
    assert live.run(STATE) == "live"


def test_the_end_of_the_job_ends_the_questions(live: browser.Browser) -> None:
    _reply(live, 200, {"format": 1, "since": 7, "version": 9, "live": False})
    assert live.run(STATE) == "ended"
    assert live.run("asked.length") == 1


def test_a_used_up_link_is_told_with_the_way_out(live: browser.Browser) -> None:
    _reply(live, 401)
    assert "the terminal gives a new one" in live.run(STATE)
    assert live.run("asked.length") == 1


def _older(*events: dict[str, Any], before: int) -> dict[str, Any]:
    return {
        "events": [{"time": page_jobs.BEGIN, "target": "job", "message": "", **own} for own in events],
        "before": before,
    }


def test_earlier_events_are_asked_for_and_put_before_those_on_the_page(live: browser.Browser) -> None:
    button = "document.getElementById('earlier')"
    first = live.run("page.data.events[0].seq")
    assert live.run(f"{button}.hidden")
    _reply(live, 200, {"since": 7, "version": 8, "events": [], "older": "older", "eventsLeftOut": 5000})
    live.run("page.data.events.forEach((event) => { event.seq += 5000; }); findEvents()")
    assert live.run(f"{button}.textContent") == "show some of 5,000 earlier"
    live.run(f"{button}.click()")
    _until(live, "asked.at(-1).url.startsWith('older?')")
    assert f"before={first + 5000}&words=&reason=&" in live.run("asked.at(-1).url")
    assert live.run(f"{button}.textContent") == "searching 5,000 earlier: stop"
    _answer(live, _older({"seq": 4999, "reason": "A"}, {"seq": 5000, "reason": "B"}, before=4999))
    assert live.run("[events.all.length, events.all[0].reason, events.all[1].reason]") == [52, "A", "B"]
    assert live.run("events.scroller.scrollTop") == 60  # what was read stays where it was
    assert live.run(f"{button}.textContent") == "show some of 4,998 earlier"
    live.run("document.querySelector('.events-scroll').scrollTop = 0")
    _until(live, "document.querySelector('[data-event=\"0\"]')")
    live.run("document.querySelector('[data-event=\"0\"]').click()")
    assert live.run("document.getElementById('drawer-title').textContent") == "Event 4999: A"
    assert live.complaints() == []


def test_a_filter_searches_earlier_events_until_one_is_found(live: browser.Browser) -> None:
    button = "document.getElementById('earlier')"
    live.run("update({...page.data, older: 'older', eventsLeftOut: 5000})")
    live.run("changeFilter({text: 'Killed gpu', reason: 'Restarting'})")
    assert live.run(f"{button}.textContent") == "search 5,000 earlier"
    live.run(f"{button}.click()")
    _until(live, "asked.at(-1).url.startsWith('older?')")
    assert "words=killed+gpu&reason=Restarting" in live.run("asked.at(-1).url")
    _answer(live, _older(before=2000), "before=2000")
    found = {"seq": 1200, "reason": "Restarting", "message": "killed on gpu-1"}
    _answer(live, _older(found, before=1100))
    assert live.run("[events.found.length, events.all[events.found[0]].seq]") == [1, 1200]
    assert live.run(f"{button}.textContent") == "search 1,099 earlier"
    live.run("changeFilter({text: 'killed'})")  # found by another filter: not all that this one would find
    assert live.run("events.all.length") == 50
    live.run(f"{button}.click()")
    live.run(f"{button}.click()")
    assert live.run(f"{button}.textContent") == "search 5,000 earlier"
    live.run(f"{button}.click()")
    _until(live, "asked.at(-1).url.startsWith('older?')")
    live.run("reply(503, {error: 'the head is gone'})")
    _until(live, f"{button}.textContent === 'the head is gone: try again'")


def _answer(page: browser.Browser, body: dict[str, Any], then: str = "") -> None:
    """Answer a question for earlier events; `then` is in the next one, else the search is over."""
    page.run(f"reply(200, {json.dumps(body)})")
    _until(page, f"asked.at(-1).url.includes({json.dumps(then)})" if then else "!earlier.asking")
    page.settle()


def test_a_page_that_is_open_for_days_keeps_the_newest_events(live: browser.Browser) -> None:
    live.run("update({...page.data, older: 'older', eventsLeftOut: 5})")
    event = "({seq: 1000 + i, time: page.end, reason: 'A', target: ''})"
    events = f"Array.from({{length: KEPT_EVENTS}}, (_, i) => {event})"
    live.run(f"update(merge(page.data, {{since: 7, version: 8, events: {events}}}))")
    assert live.run("[page.data.events.length, page.data.eventsLeftOut]") == [10_000, 10_055]
