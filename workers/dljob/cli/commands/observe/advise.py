"""`dljob advise`: what past jobs say about the next one's resources and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dljob.api import registry
from dljob.cli import advising, output
from dljob.cli import output_file as files
from dljob.cli.target import HERE
from dljob.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from dljob.report.advice.proposals import Advice


def advise(
    job: str,
    /,
    *more: str,
    write: Path | None = None,
    form: Annotated[output.TableFormat, Parameter(name=("--output", "-o"))] = "table",
) -> None:
    """Propose memory, CPUs and settings for a job from the records of its past runs, with the gain of each.

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
        for line in advising.lines(name, advice):
            output.data(line)
    else:
        output.structured(advising.data(name, advice), form)
    if write:
        _write(write, text, advice)


def _advice(given: list[str]) -> tuple[str, Advice]:
    from dljob.report.advice import past_jobs

    folders = list(dict.fromkeys(folder for one in given for folder in _folders(one)))
    return past_jobs.advise(folders)


def _folders(job: str) -> list[Path]:
    if path := HERE.path(job):
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

    made = file_changes.with_proposals(text, str(file), advice.proposals)
    if made == text:
        output.say(f"{file}: nothing to change")
        return
    files.write(file, [made], force=True)
    output.say(f"{file}: changed {', '.join(one.what for one in advice.proposals if one.value is not None)}")
