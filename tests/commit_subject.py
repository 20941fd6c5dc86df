"""Check the subject of a commit message: `area: imperative`, at most 72 characters.

    python tests/commit_subject.py MESSAGE_FILE

Exits 1 and says what is wrong. pre-commit runs it; merges, reverts and fixups by git itself pass.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

LONGEST = 72
AREA = re.compile(r"[a-z][a-z0-9_/ -]*(, [a-z][a-z0-9_/ -]*)*: (?P<said>.+)")
BY_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ")
NOT_IMPERATIVE = re.compile(
    r"(added|adds|adding|fixed|fixes|fixing|changed|changes|removed|removes|updated|updates)\b", re.I
)


def wrong(subject: str) -> list[str]:
    """What is wrong with a subject, in words; empty: nothing."""
    if subject.startswith(BY_GIT):
        return []
    found = list[str]()
    if len(subject) > LONGEST:
        found.append(f"it has {len(subject)} characters, and {LONGEST} are allowed")
    match = AREA.fullmatch(subject)
    if match is None:
        return [*found, "it does not begin with an area, as in `runtime: rooms in place of one folder`"]
    said = match["said"]
    if said.endswith("."):
        found.append("it ends in a full stop")
    if NOT_IMPERATIVE.match(said):
        found.append(f"`{said.split()[0]}` is not the imperative: say what the commit does, as in `add`")
    return found


def main(path: str) -> int:
    """Print what is wrong with the message in a file; the exit code."""
    subject = Path(path).read_text(encoding="utf-8").partition("\n")[0]
    found = wrong(subject)
    for line in found:
        sys.stderr.write(f"commit subject {subject!r}: {line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
