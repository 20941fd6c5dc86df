"""`python charts/generate.py [--check]`: write what the chart takes from elsewhere, or say that it is out of date.

Makes charts/dljob/README.md from its template, the values' comments and the rights, and copies the
CustomResourceDefinition beside them: Helm reads no file outside of a chart. The version of the chart and of its images
is that of pyproject.toml.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parent.parent
CRD = "dljob.io_dljobs.yaml"
_VERSION = re.compile(r"^(version: |appVersion: ).*$", re.MULTILINE)
_KEY = re.compile(r"(?P<pad> *)(?P<name>[A-Za-z][\w.-]*):")


def read(path: Path) -> Any:  # noqa: ANN401 - whatever the file holds
    """The data of a YAML file."""
    return YAML(typ="safe").load(path.read_text(encoding="utf-8"))


def documented(text: str) -> dict[str, str]:
    """Dotted name of each value that a `# --` comment stands above -> that comment, in the order of the file."""
    found: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    words: list[str] = []
    for line in text.splitlines():
        comment = line.strip()
        if comment.startswith("#"):
            words = [comment[4:].strip()] if comment.startswith("# --") else [*words, comment[1:].strip()]
        elif match := _KEY.match(line):
            depth = len(match["pad"])
            stack = [(pad, name) for pad, name in stack if pad < depth] + [(depth, match["name"])]
            if words:
                found[".".join(name for _, name in stack)] = " ".join(words)
            words = []
    return found


def values_table(text: str) -> str:
    """The values as a table of Markdown."""
    data = YAML(typ="safe").load(text)
    return "\n".join(_rows(data, documented(text), ("value", "default", "meaning")))


def _rows(data: Any, documents: dict[str, str], head: Sequence[str]) -> Iterator[str]:  # noqa: ANN401
    yield f"| {' | '.join(head)} |"
    yield "| --- | --- | --- |"
    for name, words in documents.items():
        value = data
        for part in name.split("."):
            value = value[part]
        yield f"| `{name}` | `{json.dumps(value)}` | {words} |"


def rights_table(rules: Sequence[dict[str, Any]]) -> str:
    """The operator's rights as a table of Markdown."""
    rows = ["| of | may | in order to |", "| --- | --- | --- |"]
    for rule in rules:
        group = rule["apiGroups"][0]
        names = "".join(f" `{name}`" for name in rule.get("resourceNames", ()))
        for resource in rule["resources"]:
            whole = f"`{resource}.{group}`" if group else f"`{resource}`"
            where = f" (rbac.scope {rule['only']})" if "only" in rule else ""
            rows += [f"| {whole}{names}{where} | {verb} | {why} |" for verb, why in rule["verbs"].items()]
    return "\n".join(rows)


def generated(root: Path = ROOT) -> dict[Path, str]:
    """Path -> content of every file made here."""
    chart = root / "charts/dljob"
    page = (chart / "README.md.tmpl").read_text(encoding="utf-8")
    page = page.replace("{{values}}", values_table((chart / "values.yaml").read_text(encoding="utf-8")))
    page = page.replace("{{rights}}", rights_table(read(chart / "files/rights.yaml")))
    crd = (root / "crds" / CRD).read_text(encoding="utf-8")
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    about = _VERSION.sub(rf"\g<1>{project['version']}", (chart / "Chart.yaml").read_text(encoding="utf-8"))
    return {chart / "README.md": page, chart / "files" / CRD: crd, chart / "Chart.yaml": about}


def main(arguments: Sequence[str]) -> int:
    """Write the files, or with --check only compare them; 0, 1 when out of date, 2 for unknown arguments."""
    if list(arguments) not in ([], ["--check"]):
        sys.stderr.write(f"unknown arguments {' '.join(arguments)}: only --check is known\n")
        return 2
    made = generated()
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in stale:
        if arguments:
            sys.stderr.write(f"{path.relative_to(ROOT)} is out of date: run python charts/generate.py\n")
        else:
            path.write_text(made[path], encoding="utf-8")
            sys.stderr.write(f"wrote {path.relative_to(ROOT)}\n")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
