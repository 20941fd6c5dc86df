"""A folder holds at most 40 modules: what a reader can take in when looking for the right one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
TOPS = ("workers", "operator", "observability", "release", "tests")
LIMIT = 40


def crowded(modules: list[str]) -> list[str]:
    """Return a line for each folder with more than LIMIT modules; `__init__.py` does not count."""
    folders = Counter(str(Path(path).parent) for path in modules if Path(path).name != "__init__.py")
    return [f"{name}: {count} modules, {LIMIT} at most" for name, count in sorted(folders.items()) if count > LIMIT]


def test_no_folder_holds_more_modules_than_the_limit():
    modules = [str(path.relative_to(ROOT)) for top in TOPS for path in (ROOT / top).rglob("*.py")]
    assert len(modules) > 1000, "the product and its tests have many modules"
    assert crowded(modules) == []
