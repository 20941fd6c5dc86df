"""`dljob advise`: what past jobs say about the next one's resources and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import output
from dljob.cli import output_file as files
from dljob.cli.target import HERE
from dljob.cli.terminal import safe
from dljob.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from dljob.report.advice.proposals import Advice, Gain


def advise(
    job: str,
    /,
    *more: str,
    write: Path | None = None,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Propose memory, CPUs, ranks and settings of a job from the records of its past runs, with each gain.

    Proposals come with the numbers that they stand on, and the rest with the reason for which there is none. Jobs of
    another shape than the last one do not count.

    Args:
        job: name: all ended jobs of that name on this machine; or uid, or the path of a job's folder, also of a copy.
        more: more of them, the newest last.
        write: the job's file, in which to set what is proposed; its comments stay.
        form: table, json or yaml.
    """
    text = _text(write) if write else ""
    name, advice = _advice([job, *more])
    if form == "table":
        for line in table(name, advice):
            output.data(line)
    else:
        output.structured(structured(name, advice), form)
    if write:
        _write(write, text, advice)


def _advice(sources: list[str]) -> tuple[str, Advice]:
    from dljob.report.advice import past_jobs

    folders = list(dict.fromkeys(folder for source in sources for folder in _folders(source)))
    return past_jobs.advise(folders)


def _folders(job: str) -> list[Path]:
    if path := HERE.folder("advise", job):
        return [path]
    named = [record for record in registry.records() if record.name == job]
    over = [record.folder for record in named if record.over]
    if named and not over:
        raise NotFoundError(f"no job {job} has ended", hint="advice is for jobs that ended")
    return over or [registry.find(job).folder]


def _text(file: Path) -> str:
    try:
        # Bytes: `read_text` would change the ends of lines.
        return file.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None


def _write(file: Path, text: str, advice: Advice) -> None:
    from dljob.report.advice import file_changes

    new_text = file_changes.with_proposals(text, str(file), advice.proposals)
    if new_text == text:
        output.say(f"{file}: nothing to change")
        return
    files.write(file, [new_text], force=True)
    output.say(
        f"{file}: changed {', '.join(proposal.subject for proposal in advice.proposals if proposal.value is not None)}"
    )


def table(name: str, advice: Advice) -> list[str]:
    """Return what a terminal shows."""
    lines = [f"advice for {_plain(name)}"]
    if advice.proposals:
        rows = [("WHAT", "NOW", "PROPOSED", "PREDICTED GAIN")]
        rows += [
            (_plain(proposal.subject), _plain(proposal.now), proposal.proposed, _gain(proposal.gain))
            for proposal in advice.proposals
        ]
        lines += ["", *output.aligned(rows), ""]
        lines += [_plain(f"{proposal.subject}: {proposal.reason}") for proposal in advice.proposals]
    else:
        lines += ["", "nothing to propose"]
    if advice.slowness:
        lines += ["", "what slowed it down", *(_plain(f"  {line}") for line in advice.slowness)]
    if advice.none:
        lines += ["", "no advice on", *(_plain(f"  {entry.subject}: {entry.reason}") for entry in advice.none)]
    return lines


def _gain(gain: Gain) -> str:
    share, unsure = 100 * gain.share, 100 * gain.uncertainty
    if gain.of == "goodput":
        return f"{share:+.1f} points of goodput, +/- {unsure:.1f}"
    if gain.of == "work":
        return f"{share:+.1f} points of its caller's time, +/- {unsure:.1f}"
    if gain.of == "ranks":
        return f"{share:.0f} % fewer ranks, +/- {unsure:.0f}"
    change = f"{'less' if share > 0 else 'more'} {gain.of}" if gain.of == "memory" else "fewer CPUs"
    return f"{abs(share):.0f} % {change}, +/- {unsure:.0f}"


def _plain(text: str) -> str:
    """Return a text of users in which no escape sequence is left."""
    return safe(text.replace("\n", " "), colours=False)


def structured(name: str, advice: Advice) -> dict[str, Any]:
    """Return the same for programs; shares of 1."""
    return {
        "job": name,
        "proposals": [proposal.data() for proposal in advice.proposals],
        "slowness": list(advice.slowness),
        "noAdvice": [{"what": entry.subject, "why": entry.reason} for entry in advice.none],
    }
