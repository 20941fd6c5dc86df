"""The environments of published frameworks have the versions of dljob's own lock: else torch is on the disk twice."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = sorted(lock for folder in ("frameworks", "bench/peers") for lock in (ROOT / "tests" / folder).glob("*.lock"))
APART = {"verl": {"omegaconf", "pyvers", "tensordict"}}
"""Small packages in which a framework's pins do not allow the version that dljob's own tests have."""
LOCKED = re.compile(r"^([a-z0-9-]+)==([^ ]+) ", re.MULTILINE)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_packages_of_both_locks_have_one_version(lock: Path):
    theirs = dict(LOCKED.findall(lock.read_text()))
    ours = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    known: dict[str, set[str]] = {}  # some have a version for each Python
    for package in ours:
        known.setdefault(package["name"], set()).add(package.get("version", ""))
    apart = {name: version for name, version in theirs.items() if version not in known.get(name, {version})}
    apart = {name: version for name, version in apart.items() if name not in APART.get(lock.stem, ())}
    assert not apart, "run: python tests/frameworks/environment.py --lock"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_each_locked_package_has_a_hash(lock: Path):
    entries = [entry for entry in re.split(r"\n(?=\S)", lock.read_text()) if "==" in entry]
    assert len(entries) > 80
    assert all("--hash=sha256:" in entry for entry in entries)
