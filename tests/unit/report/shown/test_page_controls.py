"""The parts of a job's page answer: to clicks, drags, keys and what is typed."""

from __future__ import annotations

import json
from typing import Any

import page_jobs
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
DRAWER = "document.getElementById('drawer')"
FOCUS = "((one) => [one.id || one.className, getComputedStyle(one).outlineStyle])(document.activeElement)"
LANES_BOX = """((box) => [box.x, box.y, box.width])(
  document.querySelector('.lanes-canvas canvas').getBoundingClientRect())"""
SHOWN_SHARES = """[...document.querySelectorAll('.waterfall tbody td:nth-child(3)')]
  .map((one) => Math.round(parseFloat(one.textContent) * 10))"""
ZOOM = """(() => { const found = []; for (let i = 0; i < 15; i += 1) {
  page.from += 600; page.to -= 600; const begin = performance.now(); drawNow(); found.push(performance.now() - begin);
} return found; })()"""


def test_a_mark_opens_its_incident_and_escape_closes_it(show: Any) -> None:
    page = show("rl")
    page.click(".marks .mark:not(.many)")
    assert page.run(f"{DRAWER}.hidden") is False
    text = page.run(f"{DRAWER}.innerText")
    incident = page_jobs.rl_job(ranks=120, hours=2, events=400, incidents=6)["incidents"][0]
    assert incident["cause"] in text
    assert all(line in text for line in (*incident["evidence"], *incident["log"]["lines"]))
    assert all(stage["name"] in text for stage in incident["stages"])
    page.press("Escape")
    assert page.run(f"{DRAWER}.hidden") is True
    assert page.run("document.activeElement.className") == "mark"
    assert page.complaints() == []


def test_keys_reach_incidents_filter_help_and_window(show: Any) -> None:
    page = show("rl")
    page.press("n")
    page.press("n")
    assert page.run("document.querySelector('#drawer h2').textContent").startswith("Incident 2: ")
    page.press("Escape")
    whole = page.run("span()")
    page.press("+")
    assert page.run("span()") == pytest.approx(whole / 2)
    left = page.run("page.from")
    page.press("ArrowRight")
    assert page.run("page.from") > left
    page.press("0")
    assert page.run("span()") == pytest.approx(whole)
    page.press("/")
    assert page.run("document.activeElement.id") == "filter"
    page.press("n")  # typed, not obeyed
    assert page.run(f"[{DRAWER}.hidden, document.activeElement.value]") == [True, "n"]
    page.press("Escape")
    page.press("?")
    assert page.run("document.querySelector('#drawer h2').textContent") == "Help"
    assert page.complaints() == []


def test_tab_reaches_parts_with_a_visible_focus(show: Any) -> None:
    page = show("rl")
    reached = []
    for _ in range(40):
        page.press("Tab")
        reached.append(page.run(FOCUS))
    names = [name for name, _ in reached]
    assert {"skip", "theme", "help", "tool", "mark", "fold"} <= set(names)
    assert [name for name, outline in reached if outline == "none"] == []


def test_a_drag_zooms_and_a_double_click_shows_all(show: Any) -> None:
    page = show("rl")
    page.run("document.querySelector('.lanes-canvas canvas').scrollIntoView({block: 'center'})")
    x, y, wide = page.run(LANES_BOX)
    y += 20
    whole = page.run("span()")
    page.mouse("mousePressed", x + wide * 0.25, y)
    page.mouse("mouseMoved", x + wide * 0.4, y)
    page.mouse("mouseMoved", x + wide * 0.5, y)
    page.mouse("mouseReleased", x + wide * 0.5, y)
    assert page.run("span()") == pytest.approx(whole / 4, rel=0.02)
    assert page.run("page.from - page.start") == pytest.approx(whole / 4, rel=0.02)
    page.mouse("mouseMoved", x + wide * 0.5, y)
    assert "Source:" in page.run("document.getElementById('tip').innerText")
    page.mouse("mouseWheel", x + wide * 0.5, y, deltaX=0, deltaY=-300, modifiers=2)
    page.settle()
    assert page.run("span()") < whole / 5
    page.run(
        "document.querySelector('.lanes-canvas canvas').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}))"
    )
    assert page.run("span()") == pytest.approx(whole)


def test_a_role_unfolds_to_its_ranks_in_their_colours(show: Any) -> None:
    page = show("rl")
    page.click(".fold[data-role=trainer]")
    assert page.run("document.querySelector('.fold[data-role=trainer]').getAttribute('aria-expanded')") == "true"
    # Of the first rank shown, in the middle of the job: the colour of the account that it was in.
    got, wanted = page.run("""(() => {
      const lanes = timeline.lanes, row = lanes.rows.find((one) => one.name === 'trainer'), canvas = lanes.chart.canvas;
      const ratio = canvas.width / canvas.getBoundingClientRect().width, time = (page.from + page.to) / 2;
      const lane = row.lanes[0], name = page.accounts[lane[laneAt(lane, time) + 1]];
      const y = (row.top - lanes.scroller.scrollTop + FOLDED + 2 + row.each * 0.4) * ratio;
      const pixel = canvas.getContext('2d').getImageData(canvas.width / 2, y, 1, 1).data;
      return [`rgb(${pixel[0]}, ${pixel[1]}, ${pixel[2]})`, accountColour(name)];
    })()""")
    assert got == wanted
    assert "trainer/0" in str(
        page.run("timeline.lanes.describe(page.from + 3000, timeline.lanes.rows[1].top + FOLDED + 3)")
    )


def test_shares_of_a_pixel_are_exact(show: Any) -> None:
    page = show("never")
    cover = page.run("[...shares([[0, 0, 7.5, 1, 20, -1], [5, 1, 10, -1]], 2, 0, 20, 4, 20)]")
    assert cover == [1, 0.5, 0, 0, 0, 1.5, 1, 1]


def test_counters_go_on_behind_a_restart_of_the_master(show: Any) -> None:
    page = show("never")
    assert page.run("grown([null, 3, 5, null, 2, 4])") == 9
    assert page.run("rates([0, 1, 2, 4], [1, 3, 2, 6])") == [None, 2, 2, 2]


def test_a_slow_step_shows_while_it_goes_on_and_each_rank_has_a_colour(show: Any) -> None:
    tab = show("never")
    paces = tab.run("secondsOfSteps([0, 1, 2, 3, 4, 5, 6], [1, 3, null, 5, 5, 5, 2])")
    assert paces == [None, 0.5, None, 1, 1, 2, None]
    lines = tab.run("roleLines({engine: [[1], [2], [3]], trainer: [[4]]}).map((line) => [line.name, line.colour])")
    assert [name for name, _ in lines] == ["engine/0", "engine/1", "engine/2", "trainer/0"]
    assert len({colour for _, colour in lines}) == 4


def test_calls_are_listed_with_those_under_way_and_their_mean_time(show: Any) -> None:
    page = show("rl")
    first_row = "callRows().at(-1).querySelector('tbody tr')"
    name, sent, under_way, mean_time, *_ = page.run(f"[...{first_row}.cells].map((cell) => cell.textContent)")
    assert (name, sent, mean_time) == ("coordinator>rollout.generate", "647.1k", "250 ms")
    assert int(under_way) == page.run("lastOf(samplesOf('calls')['coordinator>rollout.generate'].underWay)")


def test_a_job_of_1200_incidents_shows_them_in_parts(show: Any) -> None:
    page = show("restless")
    assert page.run("document.querySelectorAll('.incidents tbody tr').length") == 100
    page.click("#incidents .tool")
    assert page.run("document.querySelectorAll('.incidents tbody tr').length") == 600
    # Marks that lie too close are one, which zooms until they part.
    before = page.run("[document.querySelectorAll('.marks .mark').length, span()]")
    page.click(".marks .many")
    after = page.run("[document.querySelectorAll('.marks .mark').length, span()]")
    assert before[0] < 60
    assert after[1] < before[1]
    assert page.complaints() == []


def test_no_line_is_drawn_where_nobody_sampled(show: Any) -> None:
    page = show("never")
    assert page.run("[...gapsOf([0, 60, 120, 130, 140, 141, 142, 160, 161, 162])]") == [7]


def test_the_waterfall_sums_to_100_per_cent(show: Any) -> None:
    page = show("rl")
    for role in ("", "trainer"):
        page.run(f"ledgerView.role = {json.dumps(role)}; fillSection(SECTIONS.find((one) => one.id === 'ledger'))")
        assert sum(page.run(SHOWN_SHARES)) == 1000


def test_a_filter_finds_events_with_all_its_words(show: Any) -> None:
    page = show("rl")
    events = page_jobs.rl_job(ranks=120, hours=2, events=400, incidents=6)["events"]
    wanted = [
        one
        for one in events
        if "weights" in one["message"].lower() + one["reason"].lower() and one["target"] == "trainer"
    ]
    page.press("/")
    for letter in "trainer weights":
        page.press(letter)
    assert page.run("events.found.length") == len(wanted) > 0
    assert page.run("document.querySelector('.count').textContent").startswith(f"{len(wanted)} of 400 events")
    page.click(".event-open")
    assert wanted[0]["message"] in page.run(f"{DRAWER}.innerText")
    assert page.complaints() == []


def test_controls_of_each_part_answer_without_a_complaint(show: Any) -> None:
    page = show("rl")
    page.click(".row-name .as-table")
    assert page.run("document.querySelectorAll('.alternative:not([hidden]) tbody tr').length") > 10
    for control, value, event in (("placement-which", "plan", "change"), ("node-filter", "coordinator", "input")):
        choose = f"Object.assign(document.getElementById({control!r}), {{value: {value!r}}})"
        page.run(f"{choose}.dispatchEvent(new Event({event!r}))")
    assert page.run("document.querySelectorAll('.node').length") == 1
    page.click("#spec details:not([open]) > summary")
    page.click("#theme")
    assert page.run("document.documentElement.dataset.theme") == "light"
    page.click("#help")
    page.press("Escape")
    page.run("openIncident(0)")
    page.click(".panel-tools .tool:last-child")
    assert page.run("span()") < 0.5 * page.run("page.end - page.start")
    for link in page.run("[...document.querySelectorAll('.top nav a')].map((one) => one.getAttribute('href'))"):
        assert page.run(f"document.querySelector({json.dumps(link)}).childElementCount") > 0
    assert page.complaints() == []


def test_10_000_ranks_are_zoomed_within_a_frame_budget(show: Any) -> None:
    page = show("large")
    times = page.run(ZOOM)
    assert sorted(times)[len(times) // 2] < 250  # a busy machine; the figure itself is in docs/benchmarks.md
    assert page.run("document.querySelectorAll('*').length") < 5000
