"""What a conversion did, as text: the table of fields, and both sides beside each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dljob.convert.manifest import ConvertedJob, ConvertedPiece, Other, RefusedManifest
from dljob.convert.source import summarize_losses
from dljob.spec.text.words import path_of
from dljob.telemetry.wording import counted


def converted_text(pieces: Sequence[ConvertedPiece]) -> str:
    """Return the file that the conversion makes."""
    return "---\n".join(piece.text for piece in pieces if not isinstance(piece, RefusedManifest) and piece.text)


def lines(pieces: Sequence[ConvertedPiece], file: str) -> Iterator[str]:
    """Yield the report: each document, each field that is not carried, and what else is to be known."""
    for piece in pieces:
        place = f"{file}:{piece.line}"
        match piece:
            case ConvertedJob():
                yield from _job(piece, place, file)
            case Other():
                yield f"{place}: {piece.kind} {piece.name}: {piece.reason}"
            case RefusedManifest():
                yield f"{place}: {piece.kind} {piece.name}: {piece.message}".replace(" :", ":")
                if piece.hint:
                    yield f"  {piece.hint}"


def _job(job: ConvertedJob, place: str, file: str) -> Iterator[str]:
    others = list(summarize_losses(job.rows))
    carried = sum(row.fate.kind == "carried" for row in job.rows)
    harmless = sum(row.fate.kind == "harmless" for row in others)
    yield (
        f"{place}: {job.kind} -> DLJob {job.name}: {counted(carried, 'field')} carried, "
        f"{harmless} harmless here, {len(others) - harmless} not carried"
    )
    for row in others:
        word = "harmless here" if row.fate.kind == "harmless" else "not carried"
        yield f"  {file}:{row.line}: {row.path}: {word}: {row.fate.reason}"
    for remark in job.remarks:
        yield f"  note: {remark}"
    for problem in job.problems:
        yield f"  problem: {problem}"


def diff(text: str, pieces: Sequence[ConvertedPiece], width: int = 60) -> Iterator[str]:
    """Yield the source beside what became of it, line by line, and then each DLJob; no line of a Secret."""
    source = text.split("\n")
    for piece in pieces:
        first, last = piece.lines
        if not isinstance(piece, ConvertedJob):
            words = "passed on" if isinstance(piece, Other) and piece.text else "not converted"
            yield f"{first:5} {piece.kind} {piece.name}: {words}"
            continue
        fates: dict[int, list[str]] = {}
        for row in piece.rows:
            word = {"carried": "=", "harmless": "~", "dropped": "!"}[row.fate.kind]
            outcome = path_of(row.fate.to) if row.fate.kind == "carried" else row.fate.reason
            fates.setdefault(row.line, []).append(f"{word} {outcome}")
        for number in range(first, last + 1):
            outcomes = "; ".join(dict.fromkeys(fates.get(number, ())))
            yield f"{number:5} {source[number - 1][:width]:{width}} {outcomes}".rstrip()
        yield f"--- DLJob {piece.name}"
        for number, line in enumerate(piece.text.splitlines(), 1):
            yield f"{number:5} {line}"
