"""Text and data of `dljob advise`. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dljob.cli.output import aligned
from dljob.cli.terminal import safe

if TYPE_CHECKING:
    from dljob.report.advice.proposals import Advice, Gain


def lines(name: str, advice: Advice) -> list[str]:
    """Return what a terminal shows."""
    made = [f"advice for {_plain(name)}"]
    if advice.proposals:
        rows = [("WHAT", "NOW", "PROPOSED", "PREDICTED GAIN")]
        rows += [(_plain(one.what), _plain(one.now), one.proposed, _gain(one.gain)) for one in advice.proposals]
        made += ["", *aligned(rows), ""]
        made += [_plain(f"{one.what}: {one.why}") for one in advice.proposals]
    else:
        made += ["", "nothing to propose"]
    if advice.none:
        made += ["", "no advice on", *(_plain(f"  {one.what}: {one.why}") for one in advice.none)]
    return made


def _gain(gain: Gain) -> str:
    share, unsure = 100 * gain.share, 100 * gain.uncertainty
    if gain.of == "goodput":
        return f"{share:+.1f} points of goodput, +/- {unsure:.1f}"
    what = f"{'less' if share > 0 else 'more'} {gain.of}" if gain.of == "memory" else "fewer CPUs"
    return f"{abs(share):.0f} % {what}, +/- {unsure:.0f}"


def _plain(text: str) -> str:
    """Return a text of users in which no escape sequence is left."""
    return safe(text.replace("\n", " "), colours=False)


def data(name: str, advice: Advice) -> dict[str, Any]:
    """Return the same for programs; shares of 1."""
    return {
        "job": name,
        "proposals": [one.data() for one in advice.proposals],
        "noAdvice": [{"what": one.what, "why": one.why} for one in advice.none],
    }
