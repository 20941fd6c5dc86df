"""Paths of the host tests' user code."""

from __future__ import annotations

from pathlib import Path

USER_DIR = str(Path(__file__).parents[1] / "users" / "usercode")
