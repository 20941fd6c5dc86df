"""`python release/versions.py [--tag TAG | --notes]`: the version of all that a release holds, or what disagrees.

pyproject.toml has the version, and those of the other two wheels repeat it; the chart's two lines are written from it
(charts/generate.py), the lock's own rows by `uv lock`, and the changelog's first section is for it. A release's tag is
`v` and that version; its notes, which `--notes` prints, are that section.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "pyproject.toml"
_SECTION = re.compile(r"^## (?P<version>[^\s,]+),? *(?P<state>.*)$", re.MULTILINE)


def version(root: Path = ROOT) -> str:
    """The version that pyproject.toml gives."""
    return tomllib.loads((root / SOURCE).read_text(encoding="utf-8"))["project"]["version"]


def places(root: Path = ROOT) -> dict[str, str]:
    """Place -> the version that it has."""
    chart = (root / "charts/dljob/Chart.yaml").read_text(encoding="utf-8")
    lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))
    section = _SECTION.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    return {
        SOURCE: version(root),
        **_of_wheels(root),
        **{f"uv.lock {name}": row["version"] for row in lock["package"] if (name := row["name"]).startswith("dljob")},
        **{f"Chart.yaml {key}": _line(chart, key) for key in ("version", "appVersion")},
        "CHANGELOG.md": section["version"] if section else "no section",
    }


def _of_wheels(root: Path) -> dict[str, str]:
    """Versions of the other wheels, and the versions of each other that the three ask for."""
    found: dict[str, str] = {}
    for place in (SOURCE, "operator/pyproject.toml", "workers/tools/pyproject.toml"):
        text = (root / place).read_text(encoding="utf-8")
        found |= {} if place == SOURCE else {place: tomllib.loads(text)["project"]["version"]}
        found |= {f"{place} {name}": pin for name, pin in re.findall(r'"(dljob\S*)==([^"]+)"', text)}
    return found


def _line(text: str, key: str) -> str:
    found = re.search(rf"^{key}: (\S+)$", text, re.MULTILINE)
    return found[1] if found else "no line"


def differences(found: Mapping[str, str], tag: str = "") -> list[str]:
    """A sentence for each place, and for a tag, that does not have the version of pyproject.toml."""
    wanted = found[SOURCE]
    wrong = [f"{place} says {has}, pyproject.toml says {wanted}" for place, has in found.items() if has != wanted]
    if tag and tag != f"v{wanted}":
        wrong.append(f"the tag is {tag}, pyproject.toml asks for v{wanted}")
    return wrong


def unreleased(text: str) -> list[str]:
    """What a changelog lacks before its first section can be released: a date."""
    section = _SECTION.search(text)
    if section and re.fullmatch(r"\d{4}-\d{2}-\d{2}", section["state"]):
        return []
    return ["the first section of CHANGELOG.md has no date: write `## VERSION, YYYY-MM-DD`"]


def notes(text: str) -> str:
    """The first section of a changelog, without its heading."""
    return re.split(r"^## .*$", text, flags=re.MULTILINE)[1].strip() + "\n"


def main(arguments: Sequence[str]) -> int:
    """Print the version, or the notes; 1 where a place or the tag disagrees, 2 for unknown arguments."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if list(arguments) == ["--notes"]:
        sys.stdout.write(notes(changes))
        return 0
    if arguments and (arguments[0] != "--tag" or len(arguments) != 2):
        sys.stderr.write("usage: python release/versions.py [--tag TAG | --notes]\n")
        return 2
    tag = arguments[1] if arguments else ""
    wrong = differences(places(), tag)
    if tag:
        wrong += unreleased(changes)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    sys.stdout.write(f"{version()}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
