"""The colours of accounts are told apart by people with each kind of colour blindness, and on paper."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

KINDS = {
    "all": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deuteranopia": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritanopia": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
}
"""How each sees linear RGB (Machado, Oliveira, Fernandes 2009, severity 1)."""
SIDE_BY_SIDE = ("init", "productive", "detect", "decide", "replace", "rendezvous", "recompute")
"""Accounts that meet in the lanes of a restart."""


def _linear(value: int) -> float:
    share = value / 255
    return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4


def _lab(text: str, kind: str) -> tuple[float, float, float]:
    """Return a colour in CIELAB, as people of this kind see it."""
    rgb = [_linear(int(text[i : i + 2], 16)) for i in (0, 2, 4)]
    red, green, blue = (max(0.0, sum(a * b for a, b in zip(row, rgb, strict=True))) for row in KINDS[kind])
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.089
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def test_accounts_that_meet_differ_for_every_eye() -> None:
    style = (files("dljob.report") / "assets" / "page.css").read_text(encoding="utf-8")
    found = dict(re.findall(r"--account-(\w+): #([0-9a-f]{6});", style))
    near = {}
    for kind in KINDS:
        for one, other in combinations(SIDE_BY_SIDE, 2):
            apart = (
                sum((a - b) ** 2 for a, b in zip(_lab(found[one], kind), _lab(found[other], kind), strict=True)) ** 0.5
            )
            if apart < 14:
                near[kind, one, other] = round(apart, 1)
    assert near == {}
