"""Ignore files against git itself: 1,500 patterns, each over the same tree."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from dljob.api.kubernetes.ignore import ignored, rules

TREE = ("a", "b", "ab", "a.b", "x/a", "x/b", "x/ab", "x/y/a", "x/y/b", "x/y/a.b", "a b", "#a", "!a", "x/[a]", "x/y/z/a")
PIECES = ("a", "b", "x", "y", "z", "ab", "*", "**", "?", "/", "/", "[ab]", "[!a]", "[^a]", "\\", "\\#", "!", "#")
PIECES += (".", " ", "\\ ", "[]a]", "[[:alpha:]]", "a*", "[a-c]", "**/", "/**", "z/")


def patterns(count: int) -> list[str]:
    rng = random.Random(18)  # noqa: S311
    made = ("".join(rng.choice(PIECES) for _ in range(rng.randint(1, 4))) for _ in range(2 * count))
    return [text for text in made if "\\[[:" not in text][:count]


def by_ours(root: Path, text: str) -> list[str]:
    """What stays behind, as a walk that does not look into ignored folders finds it."""
    by, found = rules(text, root.as_posix()), []
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        kept = [name for name in folders if name != ".git" and not ignored(f"{here}/{name}", folder=True, by=by)]
        folders[:] = kept
        found += [(here / name).relative_to(root).as_posix() for name in files]
        found = [name for name in found if not ignored(f"{root}/{name}", folder=False, by=by)]
    return sorted(name for name in found if not name.startswith(".git"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_patterns_mean_what_git_says(tmp_path: Path) -> None:
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        if not (tmp_path / name).exists():
            (tmp_path / name).touch()
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile=/dev/null", "-c", "core.quotePath=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    differ = []
    for index, pattern in enumerate(patterns(1500)):
        text = f"{pattern}\n" if index % 3 else f"*\n!x/\n!{pattern}\n" if index % 2 else f"{pattern}\n!a\n"
        (tmp_path / ".gitignore").write_text(text)
        listed = subprocess.run(
            [*git, "ls-files", "-z", "--others", "--exclude-standard"], capture_output=True, text=True, check=True
        )
        theirs = sorted(name for name in listed.stdout.split("\0") if name and not name.startswith(".git"))
        if (ours := by_ours(tmp_path, text)) != theirs:
            differ.append((text, sorted({*ours} ^ {*theirs})))
    assert not differ, differ[:10]
