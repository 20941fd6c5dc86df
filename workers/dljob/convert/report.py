"""What a conversion did, as text: the table of fields, and both sides beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dljob.convert.manifest import ConvertedJob, ConvertedPiece, OtherManifest, RefusedManifest
from dljob.convert.source import summarize_losses
from dljob.spec.text.words import path_of
from dljob.telemetry.wording import counted


def converted_text(pieces: Sequence[ConvertedPiece]) -> str:
    """Return the file that the conversion makes."""
    return "---\n".join(piece.text for piece in pieces if not isinstance(piece, RefusedManifest) and piece.text)


def lines(pieces: Sequence[ConvertedPiece], file: str) -> Iterator[str]:
    """Yield the report: each document, each field that is not carried, and what else is to be known."""
    for piece in pieces:
        match piece:
            case ConvertedJob():
                yield from _job_lines(piece, file)
            case OtherManifest():
                yield f"{file}:{piece.line}: {piece.kind} {piece.name}: {piece.reason}"
            case RefusedManifest():
                place = f"{file}:{piece.mark.line}:{piece.mark.column}"
                yield f"{place}: {piece.kind} {piece.name}: {piece.message}".replace(" :", ":")
                if piece.hint:
                    yield f"  {piece.hint}"


def _job_lines(job: ConvertedJob, file: str) -> Iterator[str]:
    loss_rows = list(summarize_losses(job.rows))
    carried_count = sum(row.fate.kind == "carried" for row in job.rows)
    harmless_count = sum(row.fate.kind == "harmless" for row in loss_rows)
    yield (
        f"{file}:{job.line}: {job.kind} -> DLJob {job.name}: {counted(carried_count, 'field')} carried, "
        f"{harmless_count} harmless here, {len(loss_rows) - harmless_count} not carried"
    )
    for row in loss_rows:
        outcome = "harmless here" if row.fate.kind == "harmless" else "not carried"
        yield f"  {file}:{row.line}: {row.path}: {outcome}: {row.fate.reason}"
    for remark in job.remarks:
        yield f"  note: {remark}"
    for problem in job.problems:
        yield f"  problem: {problem}"


def diff(text: str, pieces: Sequence[ConvertedPiece], width: int = 60) -> Iterator[str]:
    """Yield the source beside what became of it, line by line, and then each DLJob; no line of a Secret."""
    source_lines = text.split("\n")
    for piece in pieces:
        first_line, last_line = piece.lines
        if not isinstance(piece, ConvertedJob):
            outcome = "passed on" if isinstance(piece, OtherManifest) and piece.text else "not converted"
            yield f"{first_line:5} {piece.kind} {piece.name}: {outcome}"
            continue
        outcomes_by_line: dict[int, list[str]] = {}
        for row in piece.rows:
            sign = {"carried": "=", "harmless": "~", "dropped": "!"}[row.fate.kind]
            outcome = path_of(row.fate.to) if row.fate.kind == "carried" else row.fate.reason
            outcomes_by_line.setdefault(row.line, []).append(f"{sign} {outcome}")
        for number in range(first_line, last_line + 1):
            outcomes = "; ".join(dict.fromkeys(outcomes_by_line.get(number, ())))
            yield f"{number:5} {source_lines[number - 1][:width]:{width}} {outcomes}".rstrip()
        yield f"--- DLJob {piece.name}"
        for number, line in enumerate(piece.text.splitlines(), 1):
            yield f"{number:5} {line}"
