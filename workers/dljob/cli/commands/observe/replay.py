"""`dljob replay`: a job's state at a moment of its past."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import description, diagnosis, output
from dljob.cli.commands.observe.logs import span_seconds
from dljob.cli.target import HERE
from dljob.errors import UsageError
from dljob.telemetry.wording import seconds

if TYPE_CHECKING:
    from dljob.report.replay import Past, PastMoment


def replay(
    job: str,
    /,
    *,
    at: str | None = None,
    event: int | None = None,
    diff: Annotated[tuple[int, int] | None, Parameter(negative="")] = None,
    what_if: Annotated[tuple[str, ...], Parameter(negative="", show_default=False)] = (),
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Show a job as it was at a moment of its past: state, ledger and causes, from its journal.

    The journal's oldest parts may have been dropped: the oldest moment that is kept is told. Default: the last moment,
    of a job that runs that of its last sample, about a second ago.

    Args:
        job: name, uid, the first digits of a uid, or the path of a job's folder, also of a copy.
        at: time as 2026-01-31T10:00:00Z, +SECONDS from the job's start, or a span before now: 90s, 10m, 1h30m, 2d.
        event: number of an event of `dljob events -o json`: the state behind it.
        diff: two such numbers: show what changed between them.
        what_if: predict the goodput under another rule, such as faultTolerance.spares.processesPerNode=1: a field of
            faultTolerance, restartPolicy or checkpoint; may be repeated, for rules that change together.
        form: table, json or yaml.
    """
    from dljob.report.replay import Past

    if sum(option is not None for option in (at, event, diff, what_if or None)) > 1:
        raise UsageError("--at, --event, --diff and --what-if exclude each other", hint="give one of them")
    folder = HERE.folder("replay", job) or registry.find(job).folder
    if what_if:
        _predict(folder, what_if, form)
        return
    past = Past(folder)
    if diff is not None:
        _differ(past, diff, form)
        return
    if at is not None:
        when = _time(past, at)
        _show(past, past.at(when), when, form)
    else:
        moment = past.last() if event is None else past.behind(event)
        _show(past, moment, past.end(moment) if event is None else moment.at, form)


def _time(past: Past, text: str) -> float:
    if (span := span_seconds(text)) is not None:
        # Of a job that runs the last sample may be older than a short span.
        return max(0.0, min(time.time() - span, past.end(past.last())))
    if text.startswith("+"):
        try:
            return past.oldest.state.started_at + float(text)
        except ValueError:
            raise UsageError(f"--at {text}: no number of seconds", hint="write --at +90.5") from None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        hint = "write --at 2026-01-31T10:00:00Z, --at +90.5 from the start, or --at 10m before now"
        raise UsageError(f"--at {text}: no time", hint=hint) from None
    # As all times that dljob shows: UTC unless said otherwise.
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _show(past: Past, moment: PastMoment, when: float, form: output.TableFormat) -> None:
    from dljob.api.shown_job import Overview
    from dljob.report import replay_views
    from dljob.report.replay import progress_at

    shown = replay_views.shown(past, moment, when, progress_at(past.folder, when))
    if form != "table":
        output.structured(shown, form)
        return
    output.data("\n".join(_head(past, moment, when)))
    status = shown["status"]
    overview = Overview(f"{status['name']} ({status['uid'][:8]})", status["phase"], status, status)
    output.data("\n".join(description.detail(overview, when, f"dljob events {status['name']}")))
    output.data("")
    output.data("\n".join(diagnosis.diagnose(overview, status["name"], "").lines[1:]))
    for text in shown["unrecorded"]:
        output.say(text)


def _head(past: Past, moment: PastMoment, when: float) -> list[str]:
    from dljob.master.status import rfc3339

    beginning = "its parts before were dropped" if past.cut else "the job's start"
    lines = [f"journal from {rfc3339(past.oldest.at)} ({beginning}), written by dljob {', '.join(past.cores)}"]
    if past.foreign:
        lines.append("replayed by the changes that were written, as another version wrote the journal")
    since = seconds(when - moment.state.started_at)
    lines.append(f"moment: {rfc3339(when)}, {since} after the start, behind event {moment.seq}")
    if moment.event is not None:
        lines.append(f"led there: {moment.event['t']}")
    return lines


def _differ(past: Past, numbers: tuple[int, int], form: output.TableFormat) -> None:
    from dljob.report.replay_views import difference

    first, second = sorted(numbers)
    before = past.behind(first).state
    lines = difference(before, past.behind(second).state)
    if form != "table":
        output.structured({"from": first, "to": second, "changes": lines}, form)
        return
    output.data("\n".join(lines) if lines else f"nothing changed between event {first} and event {second}")


def _predict(folder: Path, rules: tuple[str, ...], form: output.TableFormat) -> None:
    from dljob.report.what_if import predict

    prediction = predict(folder, rules)
    if form != "table":
        output.structured(prediction.shown(), form)
        return
    output.data(f"what if {prediction.rule}")
    output.data(f"goodput: {prediction.goodput:.1%}, measured {prediction.measured:.1%} without it")
    points = 100 * prediction.difference
    output.data(f"difference: {points:+.1f} points, +/- {100 * prediction.uncertainty:.1f}")
    output.data(f"the job: {prediction.phase} after {seconds(prediction.seconds)}")
    output.data(f"simulated by its own rule: {prediction.unchanged:.1%}")
