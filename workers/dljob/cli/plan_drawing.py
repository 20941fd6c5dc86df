"""Drawing of a plan as SVG: machines with their devices, and on them the ranks of each role. Pure.

One self-contained file: no script, no font, no address; text is escaped, and colours follow the reader's theme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from html import escape
from itertools import groupby
from typing import Any, NamedTuple

from dljob.plan.words import ranges
from dljob.telemetry.wording import counted

Json = Mapping[str, Any]

WIDTH, MARGIN, GAP, PAD = 960, 20, 14, 10
COLUMNS = 3
CARDS = 60
"""Most machines that are drawn; equal neighbours count as one."""
CHIPS = 12
"""Most ranks of a machine that are drawn one by one; of more, a chip for each role names all."""
CELL = 24
"""Side of a device, in pixels; a machine with more than a row of them has smaller ones."""
CHIP, LINE = 22, 18
_CARD = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) // COLUMNS
_TEXT = 7.3
"""Width of a letter: an upper bound for the fonts below."""
_NO_DEVICES = frozenset({"CPU", "memory", "object_store_memory"})
# Okabe and Ito: told apart with every kind of colour vision, and dark text is readable on each.
_COLOURS = ("#56b4e9", "#e69f00", "#2bb58c", "#f0e442", "#d98cb8", "#e8825a", "#9aa8f5", "#b8b8b8")
_STYLE = """
text { font: 13px ui-sans-serif, system-ui, sans-serif; fill: #1c2430; }
.head { font-size: 18px; font-weight: 600; } .name { font-weight: 600; } .dim { fill: #525c6b; font-size: 12px; }
.page { fill: #ffffff; } .card { fill: #f4f6f9; stroke: #c3cad4; } .free { fill: none; stroke: #8792a2; }
.chip text, .on { fill: #14181f; font-size: 12px; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6eaf0; } .dim { fill: #a9b3c1; }
  .page { fill: #14181f; } .card { fill: #1e2530; stroke: #3d4757; }
  .chip text, .on { fill: #14181f; }
}
"""


class MachineCard(NamedTuple):
    """A machine, or several equal ones, of which the first is drawn."""

    names: Sequence[str]
    group: str
    ranks: Sequence[tuple[str, str]]
    """(role, rank) of the first machine."""
    shares: Mapping[str, Sequence[tuple[str, str, Decimal]]]
    """Kind of device -> (role, rank, devices)."""
    devices: Mapping[str, Decimal]
    """Kind of device -> its number on the machine."""
    left_text: str


def draw(data: Json) -> str:
    """Draw a plan, given as the data of `dljob plan -o json`."""
    colours = {str(role["name"]): _COLOURS[n % len(_COLOURS)] for n, role in enumerate(data["roles"])}
    cards = _cards(data)
    parts_drawn, y = _legend(data, colours)
    for first in range(0, min(len(cards), CARDS), COLUMNS):
        row = [_card(card, colours) for card in cards[first : min(first + COLUMNS, CARDS)]]
        height = max(tall for _, tall in row)
        for column, (parts, _) in enumerate(row):
            x = MARGIN + column * (_CARD + GAP)
            parts_drawn.append(
                f'<g transform="translate({x} {y})"><rect class="card" width="{_CARD}" height="{height}" rx="6"/>'
            )
            parts_drawn += [*parts, "</g>"]
        y += height + GAP
    if len(cards) > CARDS:
        more = sum(len(card.names) for card in cards[CARDS:])
        parts_drawn.append(_text(MARGIN, y + 13, f"... and {counted(more, 'machine')}: dljob plan shows all", "dim"))
        y += LINE + GAP
    size = f'width="{WIDTH}" height="{y}"'
    title = escape(f"Placement of job {data['name']}")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {y}" role="img">',
            f"<title>{title}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" {size}/>',
            *parts_drawn,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    # XML has no control characters; names are users' text.
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return f'<text x="{x:g}" y="{y:g}"{mark}>{escape(shown)}</text>'


def _cut(text: str, width: float) -> str:
    most = max(1, int(width / _TEXT))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _legend(data: Json, colours: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the heading and a line for each role, and the height that they take."""
    roles: Sequence[Json] = data["roles"]
    ranks = sum(int(role["replicas"]) for role in roles)
    parts = [counted(len(roles), "role"), counted(ranks, "rank"), counted(len(data["units"]), "unit"),
             counted(len(data["nodes"]), "machine")]  # fmt: skip
    y = MARGIN + 16
    drawn = [_text(MARGIN, y, _cut(f"{data['name']}: {', '.join(parts)}", WIDTH * 0.7), "head")]
    for role in roles:
        y += LINE + 6
        name = str(role["name"])
        takes = ", ".join(f"{amount} {kind}" for kind, amount in role["eachRank"].items()) or "nothing of its own"
        kind = f"{role['type']}{', driver' if role['driver'] else ''}"
        words = _cut(f"{counted(int(role['replicas']), 'rank')}, {kind}; each takes {takes}", WIDTH - 260)
        drawn.append(f'<rect x="{MARGIN}" y="{y - 13}" width="16" height="16" rx="3" fill="{colours[name]}"/>')
        drawn += [_text(MARGIN + 24, y, _cut(name, 180), "name"), _text(MARGIN + 220, y, words, "dim")]
    return drawn, y + LINE + 4


def _cards(data: Json) -> list[MachineCard]:
    """Return the machines; neighbours that differ in the numbers of ranks alone are one card."""
    units = {str(unit["name"]): unit for unit in data["units"]}
    per_rank = {str(role["name"]): role["eachRank"] for role in data["roles"]}
    groups = {str(group["name"]): group["resources"] for group in data["nodeGroups"]}
    single = [_machine(node, units, per_rank, groups) for node in data["nodes"]]
    merged_cards: list[MachineCard] = []
    for _, same in groupby(single, key=_likeness):
        cards = list(same)
        merged_cards.append(cards[0]._replace(names=[name for card in cards for name in card.names]))
    return merged_cards


def _likeness(card: MachineCard) -> object:
    shares = {
        kind: [(role, amount) for role, _, amount in device_shares] for kind, device_shares in card.shares.items()
    }
    return card.group, [role for role, _ in card.ranks], shares, card.devices, card.left_text


def _machine(
    node: Json, units: Mapping[str, Json], per_rank: Mapping[str, Json], groups: Mapping[str, Json]
) -> MachineCard:
    named = [str(rank) for unit in node["units"] for bundle in units[unit]["bundles"] for rank in bundle["ranks"]]
    ranks = [(role, number) for role, _, number in (name.rpartition("/") for name in named)]
    shares: dict[str, list[tuple[str, str, Decimal]]] = {}
    for role, number in ranks:
        for kind, amount in per_rank[role].items():
            if kind not in _NO_DEVICES:
                shares.setdefault(kind, []).append((role, number, Decimal(amount)))
    total = {kind: Decimal(amount) for kind, amount in groups.get(str(node["group"]), {}).items()
             if kind not in _NO_DEVICES}  # fmt: skip
    for kind, device_shares in shares.items():
        # A machine of no group says what is left alone.
        total.setdefault(kind, sum((amount for *_, amount in device_shares), Decimal(str(node["left"].get(kind, 0)))))
    left_text = ", ".join(f"{amount} {kind}" for kind, amount in node["left"].items())
    return MachineCard([str(node["id"])], str(node["group"] or ""), ranks, shares, total, left_text)


def _card(card: MachineCard, colours: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the parts of a card, and the height that it takes."""
    inner = _CARD - 2 * PAD
    y = PAD + 13
    name = card.names[0] if len(card.names) == 1 else f"{card.names[0]} … {card.names[-1]}"
    drawn = [_text(PAD, y, _cut(name, inner), "name")]
    notes = [f"group {card.group}"] if card.group else []
    notes += [f"first of {len(card.names)} alike"] if len(card.names) > 1 else []
    if notes:
        y += LINE
        drawn.append(_text(PAD, y, _cut(", ".join(notes), inner), "dim"))
    for kind, count in sorted(card.devices.items()):
        y += LINE
        drawn.append(_text(PAD, y, _cut(f"{count:f} {kind}", inner), "dim"))
        parts, tall = _device_row(kind, count, card.shares.get(kind, ()), colours, inner)
        drawn += [f'<g transform="translate({PAD} {y + 6})">', *parts, "</g>"]
        y += tall + 10
    parts, tall = _chips(card.ranks, colours, inner)
    drawn += [f'<g transform="translate({PAD} {y + 8})">', *parts, "</g>"]
    y += 8 + tall
    if card.left_text:
        y += LINE
        drawn.append(_text(PAD, y, _cut(f"left: {card.left_text}", inner), "dim"))
    return drawn, y + PAD


def _device_row(
    kind: str, count: Decimal, device_shares: Sequence[tuple[str, str, Decimal]], colours: Mapping[str, str], inner: int
) -> tuple[list[str], int]:
    """Return the devices as squares, filled by who holds which share of them, and the height that they take."""
    device_count = max(1, int(count.to_integral_value()))
    side = min(CELL, max(6, (inner + 4) // min(device_count, 16) - 4))
    across = max(1, (inner + 4) // (side + 4))
    drawn = [
        f'<rect class="free" x="{n % across * (side + 4)}" y="{n // across * (side + 4)}" width="{side}"'
        f' height="{side}" rx="2"/>'
        for n in range(min(device_count, 16 * 8))
    ]
    at = Decimal(0)
    for role, rank, amount in device_shares:
        until = at + amount
        while at < until:
            cell = int(at)
            end = min(until, Decimal(cell + 1))
            x, y = cell % across * (side + 4), cell // across * (side + 4)
            drawn.append(
                f'<rect x="{x + float(at - cell) * side:g}" y="{y}" width="{float(end - at) * side:g}" height="{side}"'
                f' rx="2" fill="{colours[role]}"><title>{escape(f"{role}/{rank}: {amount:f} {kind}")}</title></rect>'
            )
            at = end
    rows = -(-min(device_count, 16 * 8) // across)
    return drawn, rows * (side + 4)


def _chips(ranks: Sequence[tuple[str, str]], colours: Mapping[str, str], inner: int) -> tuple[list[str], int]:
    """Return the ranks as named chips, and the height that they take."""
    drawn: list[str] = []
    x, y = 0.0, 0
    shown = [(f"{role}/{rank}", colours[role]) for role, rank in ranks]
    if len(ranks) > CHIPS:
        numbers_by_role: dict[str, list[int]] = {}
        for role, rank in ranks:
            numbers_by_role.setdefault(role, []).append(int(rank))
        shown = [(f"{role} {ranges(sorted(numbers))}", colours[role]) for role, numbers in numbers_by_role.items()]
    for name, colour in shown or [("no ranks", "")]:
        text = _cut(name, inner - 12)
        wide = min(inner, len(text) * _TEXT + 12)
        if x and x + wide > inner:
            x, y = 0.0, y + CHIP + 4
        if colour:
            drawn.append(
                f'<g class="chip"><rect x="{x:g}" y="{y}" width="{wide:g}" height="{CHIP}" rx="4" fill="{colour}"/>'
            )
            drawn += [_text(x + 6, y + 15, text), "</g>"]
        else:
            drawn.append(_text(x, y + 15, text, "dim"))
        x += wide + 4
    return drawn, y + CHIP
