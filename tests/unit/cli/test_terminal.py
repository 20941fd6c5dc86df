"""Text of others on a terminal: nothing in it is obeyed but colours."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from dljob.api.shown_job import Overview
from dljob.cli import description, output, timeline
from dljob.cli.progress import View
from dljob.cli.terminal import rewritten, safe

RED = "\x1b[31mred\x1b[0m"


def test_plain_text_is_left_as_it_is():
    text = "step 1\tloss 0.5\nüber 日本語"
    assert safe(text, colours=True) is text


def test_colours_pass_on_a_terminal_and_nowhere_else():
    assert safe(RED, colours=True) == RED
    assert safe(RED, colours=False) == "red"
    assert safe("\x1b[1;38:5:9mbold", colours=True) == "\x1b[1;38:5:9mbold\x1b[0m", "the next line has its own colour"


@pytest.mark.parametrize(
    ("escape", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x1b]52;c;cm0=\x1b\\", r"\x1b]52;c;cm0=\x1b" + "\\"),
        ("\x9b2J", r"\x9b2J"),
        ("a\bb\x7f", r"a\x08b\x7f"),
        ("over\rwritten", r"over\x0dwritten"),
        ("exe\u202etxt.", r"exe\u202etxt."),
        ("half \udc80", r"half \udc80"),
    ],
)
def test_every_other_escape_is_text(escape, shown):
    assert safe(escape, colours=True) == shown


@pytest.mark.parametrize(
    ("line", "left"), [("10%\r20%\r30%", "30%"), ("done\r", "done"), ("a\r\r", "a"), ("\r", ""), ("plain", "plain")]
)
def test_a_carriage_return_rewrites_its_own_line(line, left):
    assert rewritten(line) == left


def test_output_of_the_command_carries_no_foreign_escape_sequence(capsys, monkeypatch):
    output.say("error: job x failed: \x1b[2J")
    output.data("[worker/0] \x1b[2J\x07\u202e")
    output.document("[worker/0] \x1b[2J")
    heard = capsys.readouterr()
    assert heard.err == "error: job x failed: \\x1b[2J\n"
    people, programs = heard.out.splitlines()
    assert (people, programs) == ("[worker/0] \\x1b[2J\\x07\\u202e", "[worker/0] \x1b[2J")
    written: list[str] = []
    terminal = SimpleNamespace(isatty=lambda: True, write=written.append, flush=lambda: None)
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    output.data(f"[worker/0] \x1b[2J {RED}")
    output.document(f"[worker/0] \x1b[2J {RED}")
    assert written == ["[worker/0] \\x1b[2J red\n"] * 2


FORGED = "bad\n[   9.9s] Succeeded\r\u2028  restarts: none\x85\x1d\tphase: Succeeded"
"""The message of a user's error, whose lines look like those of dljob."""


def test_a_users_line_end_begins_no_line_of_the_timeline():
    event = {"reason": FORGED, "target": FORGED, "message": FORGED, "level": FORGED, "time": 1.0}
    running = {"phase": "Running", "message": FORGED, "progress": {"step": 1, "metrics": {FORGED: 1.0}}}
    shown = [
        timeline.line(event, 0.0),
        *View("j").update(running, [event], 0.0),
        output.fate("j", {"phase": "Failed", "reason": "UserError", "message": FORGED}),
        output.fate("j", {"phase": "Stopped", "message": FORGED}),
    ]
    fault = {"target": "a/0", "firstCause": FORGED, "evidence": [FORGED], "followed": [FORGED]}
    status = {"message": FORGED, "recentFaults": [fault], "problems": [{"message": FORGED}], "cuts": {"why": FORGED}}
    status |= {"stalls": [{"sentence": FORGED}], "endpoints": [{"role": FORGED}]}
    shown += description.detail(Overview("j", "Failed", status, {}), 0.0, "dljob events j")
    assert len(shown) == 16
    assert all(len(line.splitlines()) <= 1 for line in shown)
    assert all(line.startswith(("error: job j failed", "job j was stopped", "[ ", " ", "j: ")) for line in shown)
