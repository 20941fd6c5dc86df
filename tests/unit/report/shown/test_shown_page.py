"""The page of a job in a browser: nothing is cut, all can be read, and hostile text is inert."""

from __future__ import annotations

from typing import Any

import page_checks
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SIZES = pytest.mark.parametrize("width", [360, 1440])
JOBS = pytest.mark.parametrize("job", ["rl", "never", "none", "hostile"])


@JOBS
@SIZES
def test_no_text_is_cut_or_lies_over_another(show: Any, job: str, width: int) -> None:
    page = show(job, width)
    assert page.run(page_checks.CUT) == []
    assert page.run(page_checks.OVERLAPS) == []
    assert page.complaints() == []


@SIZES
def test_an_incident_and_an_event_open_without_cut_text(show: Any, width: int) -> None:
    page = show("hostile", width)
    for shown in ("openIncident(1)", "openEvent(3)", "openHelp()"):
        page.run(shown)
        page.settle()
        assert page.run(page_checks.CUT) == []
        assert page.run(page_checks.CONTROLS) == []
    assert page.complaints() == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(show: Any, *, dark: bool) -> None:
    page = show("rl", dark=dark)
    assert page.run(page_checks.CONTRAST) == []
    for shown in ("openIncident(4)", "openHelp()"):
        page.run(shown)
        assert page.run(page_checks.CONTRAST) == []


@JOBS
def test_each_part_draws_or_says_what_is_missing(show: Any, job: str) -> None:
    page = show(job)
    lines = "[...document.querySelectorAll('main > section')].map((one) => one.innerText.trim().split('\\n').length)"
    assert min(page.run(lines)) >= 2
    assert "could not be drawn" not in page.run("document.body.innerText")


def test_every_number_has_a_hover_with_its_source(show: Any) -> None:
    page = show("rl")
    assert page.run(page_checks.SOURCELESS) == []
    page.run("openIncident(1)")
    assert page.run(page_checks.SOURCELESS) == []


def test_hostile_text_is_shown_and_does_nothing(show: Any) -> None:
    page = show("hostile")
    assert page.run("document.querySelectorAll('img, main script').length") == 0
    assert page.run(page_checks.CONTROLS) == []
    title = page.run("document.querySelector('h1').textContent")
    assert title.startswith("</script><img src=x onerror=alert(1)>\\x1b[31m\\x07\\u202eevil\\u2066 ")
    assert page.run(
        "[...document.querySelectorAll('bdi')].some((one) => one.textContent.includes('\\u05e9\\u05dc\\u05d5\\u05dd'))"
    )
    assert page.complaints() == []


def test_each_chart_has_a_name_and_can_be_read_as_a_table(show: Any) -> None:
    page = show("rl")
    names = page.run("[...document.querySelectorAll('canvas')].map((one) => one.getAttribute('aria-label') || '')")
    assert min(map(len, names)) > 10
    page.run("for (const one of document.querySelectorAll('.as-table')) one.click()")
    tables = (
        "[...document.querySelectorAll('.alternative table')].map((one) => one.querySelectorAll('tbody td').length)"
    )
    assert len(page.run(tables)) == page.run("document.querySelectorAll('.as-table').length") > 8
    assert min(page.run(tables)) > 2
    for width in (1440, 360):
        page.resize(width, 900)
        page.settle()
        assert page.run(page_checks.CUT) == []
    assert page.complaints() == []


def test_a_printed_page_is_light_and_whole(show: Any) -> None:
    page = show("rl", dark=True)
    page.run("dispatchEvent(new Event('beforeprint'))")
    page.call("Emulation.setEmulatedMedia", media="print")
    page.settle()
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.run(page_checks.CONTRAST) == []
    assert page.run("document.querySelectorAll('.event').length") >= 60
    page.call("Page.printToPDF", printBackground=True)
    page.call("Emulation.setEmulatedMedia", media="")
    assert page.complaints() == []
