"""The bench of peers takes turns, goes on where it was ended, and says of each cell why it has no figure."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PEERS = ROOT / "tests" / "bench" / "peers"
FAKE = '''
import os, subprocess, sys, time
from pathlib import Path

out, kind, n = Path(os.environ["PEER_OUT"]), os.environ["FAKE"], int(sys.argv[2])
if kind == "fails":
    sys.exit("this peer | is broken")
if kind == "hangs":
    time.sleep(600)
life = """
import json, os, sys, time
from pathlib import Path
out = Path(os.environ["PEER_OUT"])
with (out / f"rank-{sys.argv[1]}.jsonl").open("a") as file:
    file.write(json.dumps({"t": time.time(), "pid": os.getpid(), "rank": int(sys.argv[1])}) + chr(10))
while not (out / "go").exists():
    time.sleep(0.01)
"""
start = lambda rank: subprocess.Popen([sys.executable, "-c", life, str(rank)])
ranks = {rank: start(rank) for rank in range(n)}
if kind == "leaves":
    subprocess.Popen(["sleep", "600"], start_new_session=True)
begun = time.monotonic()
while not (out / "go").exists():
    if len(list(out.glob("rank-*.jsonl"))) < n:
        begun = time.monotonic()
    if kind == "ends" and time.monotonic() - begun > 0.5:
        for process in ranks.values():
            process.kill()
        sys.exit(3)
    for rank, process in ranks.items():
        if process.poll() is not None and not (out / "go").exists():
            ranks[rank] = start(rank)
    time.sleep(0.01)
for process in ranks.values():
    process.wait()
'''


@pytest.fixture(scope="module")
def bench() -> Any:
    sys.path.insert(0, str(PEERS))
    import bench_peers

    return bench_peers


@pytest.fixture
def fake(bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that takes samples of a fake peer of some kind."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE)
    monkeypatch.setitem(bench.PEERS, "fake", bench.Peer("fake", str(script), "none", ray=False))

    def sampled(kind: str, row: str = "one", limit_s: float = 60.0) -> Any:
        monkeypatch.setenv("FAKE", kind)
        (sample,) = bench.sampled(("A", row, "fake"), Path(sys.executable), limit_s)
        return sample

    return sampled


def alive(word: str) -> list[str]:
    """Return the folders of this process's runs of which a process is still there; another may run tests beside it."""
    found, own = [], f"PYTEST_XDIST_WORKER={os.environ.get('PYTEST_XDIST_WORKER', '')}"
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        ours = f"FAKE={word}" in words and (own in words or own.endswith("="))
        found += [one for one in words if one.startswith("PEER_OUT=") and ours]
    return found


def sample(bench: Any, peer: str, value: float | None = 1.0, row: str = "one", **more: Any) -> Any:
    return bench.Sample("A", row, peer, value=value, **more)


def test_peers_of_a_row_take_turns(bench: Any) -> None:
    cells, taken = [("A", row, peer) for row in ("one", "two") for peer in ("a", "b")], []
    while cell := bench.next_cell(cells, taken, 2):
        taken.append(sample(bench, cell[2], row=cell[1]))
    assert [(one.row, one.peer) for one in taken] == [
        (row, peer) for row in ("one", "two") for _ in range(2) for peer in ("a", "b")
    ]


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


def test_words_choose_rows_peers_and_workloads(bench: Any) -> None:
    assert bench.possible(["S", "one", "two", "torchrun"], []) == [("S", "one", "torchrun"), ("S", "two", "torchrun")]
    assert ("S", "node", "torchrun") not in bench.possible([], [])
    assert ("G", "goodput", "elastic_launch") in bench.possible([], [])
    assert ("S", "hang", "dljob") in bench.possible([], [])


def test_peer_that_cannot_be_installed_is_noted_and_the_rest_goes_on(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def python_of(peer: Any) -> Path:
        if peer.name == "DLRover":
            raise bench.NotToBeHadError("no index")
        return Path(sys.executable)

    monkeypatch.setattr(bench.peer_samples, "FIGURES", tmp_path / "figures.jsonl")
    monkeypatch.setattr(bench, "python_of", python_of)
    monkeypatch.setattr(bench, "sampled", lambda cell, _python: [bench.Sample(*cell, value=1.0)])
    bench.measure_all(["A", "one"], 1)
    said = [(one.row, one.peer) for one in bench.known(tmp_path / "figures.jsonl")]
    assert said == [("one", "dljob"), ("install", "DLRover"), ("one", "bare Ray")]


def test_killed_rank_of_a_peer_comes_back(fake: Any) -> None:
    got = fake("works")
    assert (got.why, got.restarted, got.left) == ("", 1, 0)
    assert got.value > 0
    assert not alive("works")


def test_jobs_at_once_have_folders_of_their_own_and_a_number_that_fits(
    bench: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del fake  # it has made the peer known
    monkeypatch.setenv("FAKE", "works")
    jobs, fit = bench.sampled(("A", "jobs", "fake"), Path(sys.executable), 60.0)
    assert (jobs.row, fit.row, jobs.why, jobs.left) == ("jobs", "fit", "", 0)
    assert jobs.value > 0
    assert fit.value > 8
    assert not alive("works")


def test_peer_that_hangs_is_ended(fake: Any) -> None:
    assert fake("hangs", limit_s=0.5).why.startswith("not in")
    assert not alive("hangs")


def test_peer_that_fails_says_its_last_line(fake: Any) -> None:
    assert fake("fails").why == "the command ended with 1: this peer / is broken"


def test_reason_has_nothing_that_differs_from_run_to_run(fake: Any, tmp_path: Path) -> None:
    del fake  # it has loaded the module
    log = tmp_path / "log"
    for line, reason in (
        ("[2026-11-28 06:13:25,418 E 11872 11893] rpc_client.h:204: No GCS. GCS may have been killed.", "No GCS"),
        ("RuntimeError: no placement group for job peer-2.", "RuntimeError: no placement group"),
        ("it ended\n(pid=15512)   cpu = torch.device(0) [repeated 2x across cluster]\n(Worker pid=7) 1", "it ended"),
    ):
        log.write_text(f"{line}\n")
        assert sys.modules["peer_run"].said(log) == f": {reason}"


def test_processes_that_a_peer_leaves_are_counted_and_ended(
    bench: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peer_run.LEAVE_S", 0.1)
    assert fake("leaves", row="start-4").left == 1
    assert not alive("leaves")


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


def test_goodput_counts_what_is_saved_under_the_faults_of_a_trace(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peer_goodput import Trace, allowed, measure, trace

    script = tmp_path / "fake.py"
    ten_a_second = """    (out / "kept.new").write_text(str(int(10 * time.time())))
    (out / "kept.new").rename(out / "kept")
    time.sleep(0.01)
for"""
    script.write_text(FAKE.replace("    time.sleep(0.01)\nfor", ten_a_second))
    monkeypatch.setenv("FAKE", "works")
    peer = bench.Peer("fake", str(script), "none", ray=False, absent={"node": "it has none"})
    faults = Trace(1.0, ((0.1, "one"), (0.2, "node"), (0.3, "two")))
    got = measure(peer, Path(sys.executable), faults)
    assert 0.5 < got.values["goodput"] < 2.0
    assert got.left == 0
    assert allowed(Trace(100.0, ((1, "one"), (2, "one"), (3, "hang"))), {"one": 1.0, "hang": 6.5}) == pytest.approx(0.9)
    kinds = {what for _, what in trace().faults}
    assert kinds <= set(bench.ROWS)
    assert (trace().seconds, len(trace().faults)) == (600, 10)


def test_a_command_that_ends_under_a_trace_is_started_again(
    bench: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peer_goodput import Trace, measure

    del fake  # it has made the peer known
    monkeypatch.setenv("FAKE", "ends")
    got = measure(bench.PEERS["fake"], Path(sys.executable), Trace(1.5, ((0.1, "one"),)))
    assert got.again >= 1
    spoken = bench.cell_text(("A", "one", "dljob"), [sample(bench, "dljob", again=got.again)])
    assert spoken == f"1.00 s (n=1), its command started again {got.again} x"
    assert not alive("ends")


def test_memory_is_told_of_a_rank_and_of_all_else(bench: Any, fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del fake
    monkeypatch.setenv("FAKE", "works")
    start, rank, rest = bench.sampled(("A", "start-16", "fake"), Path(sys.executable), 60.0)
    assert (start.row, rank.row, rest.row) == ("start-16", "pss", "pss-rest")
    # A Python that has imported nothing, and the command, which is one, too.
    assert 1 < rank.value < 30
    assert 1 < rest.value < 30


def test_rank_is_killed_once_the_head_is_gone_for_long_or_its_command_is_told_to_have_ended(
    bench: Any, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[str] = []

    class Gcs:
        def kill(self) -> None:
            killed.append("gcs_server")

    monkeypatch.setattr("peer_run.HEADLESS_S", 1.0)
    monkeypatch.setattr("peer_run.Run.named", lambda self, name: Gcs())
    assert fake("works", row="head").value < 1
    assert fake("ends", row="head").why.startswith("the command ended with 3 after")
    assert killed == ["gcs_server"] * 2
    assert not alive("works")


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
