"""The bench of peers takes turns, goes on where it was ended, and says of each cell why it has no figure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "tests" / "bench" / "peers"


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(PEERS))
    import bench_peers

    return bench_peers


def sample(bench: Any, peer: str, value: float | None = 1.0, row: str = "one", **more: Any) -> Any:
    return bench.Sample("A", row, peer, value=value, **more)


def test_slow_and_failed_figures_have_fewer_samples(bench: Any) -> None:
    from peer_samples import wanted

    assert wanted([]) == wanted([sample(bench, "a")]) == 7
    assert wanted([sample(bench, "a", 49.0)]) == 7
    assert wanted([sample(bench, "a", 51.0)]) == wanted([sample(bench, "a"), sample(bench, "a", None)]) == 3
    assert wanted([sample(bench, "a", None)]) == 2


def test_samples_survive_a_line_that_was_cut(bench: Any, tmp_path: Path) -> None:
    path = tmp_path / "figures.jsonl"
    bench.note(path, [sample(bench, "a")])
    with path.open("a") as file:
        file.write('{"workload": "A", "ro')
    bench.note(path, [sample(bench, "b")])
    assert [one.peer for one in bench.known(path)] == ["a", "b"]


def test_cells_without_figures_say_why(bench: Any) -> None:
    assert bench.cell_text(("A", "one", "dljob"), []) == "not measured"
    assert bench.cell_text(("A", "one", "torchrun"), []) == "n/a, because nobody can call the ranks of its script"
    gone = [bench.Sample("", bench.INSTALL, "DLRover", why="it cannot be installed: no index")]
    assert bench.cell_text(("A", "one", "DLRover"), gone) == "n/a, because it cannot be installed: no index"
    assert not [cell for cell in bench.possible([], gone) if cell[2] == "DLRover"]


def test_goodput_that_is_allowed_needs_a_row_for_each_kind_of_fault(bench: Any) -> None:
    from peer_goodput import Trace

    faults = Trace(100.0, ((1, "one"), (2, "one"), (3, "hang")))
    one = bench.Sample("S", "one", "dljob", value=1.0)
    others = [bench.Sample("S", "hang", "torchrun", value=0.1), bench.Sample("A", "hang", "dljob", value=0.1)]
    assert bench.allowed_goodput([one, *others], faults) is None
    samples = [one, *others, bench.Sample("S", "hang", "dljob", value=6.5)]
    assert bench.allowed_goodput(samples, faults) == pytest.approx(0.9)


def test_page_has_the_samples_that_were_measured(bench: Any) -> None:
    page = bench.PAGE.read_text()
    assert page.count(bench.BEGIN) == page.count(bench.END) == 1
    assert bench.rendered(page, bench.known(bench.peer_samples.FIGURES)) == page, "run: make bench-peers ARGS=--table"
