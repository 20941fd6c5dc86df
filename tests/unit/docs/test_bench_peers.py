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


def test_cells_say_median_count_and_what_was_left(bench: Any) -> None:
    three = [sample(bench, "dljob", value, restarted=1, left=2) for value in (1.0, 9.0, 2.0)]
    assert bench.cell_text(("A", "one", "dljob"), three) == "2.00 s (n=3), 1 restarted, left 2 processes"
    late = [*three[:2], sample(bench, "dljob", None, why="not in 120 s")]
    assert (
        bench.cell_text(("A", "one", "dljob"), late)
        == "5.00 s (2 of 3 runs), 1 restarted, not in 120 s, left 2 processes"
    )
    assert bench.cell_text(("A", "pss", "dljob"), [sample(bench, "dljob", 135.2, row="pss")]) == "135 MiB (n=1)"


def test_cells_without_figures_say_why(bench: Any) -> None:
    assert bench.cell_text(("A", "one", "dljob"), []) == "not measured"
    assert bench.cell_text(("A", "one", "torchrun"), []) == "n/a, because nobody can call the ranks of its script"
    gone = [bench.Sample("", bench.INSTALL, "DLRover", why="it cannot be installed: no index")]
    assert bench.cell_text(("A", "one", "DLRover"), gone) == "n/a, because it cannot be installed: no index"
    assert not [cell for cell in bench.possible([], gone) if cell[2] == "DLRover"]


def test_headlines_hold_dljob_against_the_best_of_the_others(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.figures, "known", dict)  # without the row of Kubernetes
    samples = [
        *(sample(bench, name, value) for name, value in (("dljob", 0.5), ("DLRover", 8.0), ("bare Ray", 1.0))),
        sample(bench, "DLRover", None, why="not in 120 s"),
        sample(bench, "dljob", 9.0, row="two"),
        *(bench.Sample("G", "goodput", name, value=value) for name, value in (("dljob", 0.9), ("torchrun", 0.3))),
    ]
    lines = bench.headlines(samples).splitlines()[2:]
    assert [line.split(" | ")[1:4] for line in lines] == [
        ["0.5 s", "1 s (bare Ray)", "0.50 x"],
        ["0.9", "0.3 (torchrun)", "3.00 x"],
    ]
    assert "`█` dljob<br>`████████████████` DLRover<br>`██` bare Ray" in lines[0]
    one = [each for each in samples if each.row == "one"]
    assert bench.differs(one, "bare Ray")
    near = [*one, sample(bench, "dljob", 1.5), sample(bench, "dljob", 0.5), sample(bench, "bare Ray", 1.1)]
    assert not bench.differs(near, "bare Ray")
    assert bench.differs(near, "DLRover")
    assert bench.headlines(near).splitlines()[2].split(" | ")[3] == "0.48 x, within the spread"
    assert (bench.bar(0.0, 1.0), bench.bar(1 / 128, 1.0), bench.bar(0.5 / 16, 1.0)) == ("▏", "▏", "▌")


def test_job_on_kubernetes_is_held_against_the_kinds_of_others(bench: Any) -> None:
    samples = {"DLJob": [3.0, 1.0, 2.0], "RayJob": [4.0], "RayJob's task": [5.0], "plain Job": [1.0]}
    kept = {"kube_jobs": {"rows": [{"samples": {"seconds": [1.0]}}, {"samples": samples}]}}
    values = bench.on_kubernetes(kept)
    assert values == {"dljob": 2.0, "RayJob": 4.0, "plain Job": 1.0}
    assert "| 2 s | 1 s (plain Job) | 2.00 x |" in bench.headline("start", values, "s")[0]
    assert bench.headline("start", bench.on_kubernetes({}), "s") == []


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
