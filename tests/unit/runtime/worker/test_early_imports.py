"""What a fork server imports of a script's packages, and which it leaves to the ranks. No Ray."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fork_kit import Server, alive

from dljob.runtime.process import preload
from dljob.runtime.worker import early_imports

DRIVER = """
import json, os, sys
from dljob.runtime.worker import early_imports
given = json.loads(sys.argv[1])
early_imports.STILL_S, early_imports.TOTAL_S = given.pop("bounds")
sys.path.insert(0, given.pop("site"))
before = list(sys.path), sys.modules["__main__"]
notes = early_imports.keep(**given, succession=os.pipe()[1])
assert before == (sys.path, sys.modules["__main__"])
assert "JE_ARROW_MALLOC_CONF" not in os.environ
del os.environ["RANK_OF_NOBODY"]
threads = len(os.listdir("/proc/self/task"))
print(json.dumps([notes.kept, notes.done, notes.left, notes.said.decode(), threads, sorted(sys.modules)]))
"""
GOOD = """
import os, sys
FACTS = [sys.modules["__main__"].__file__, sys.path[0], os.getcwd(), os.environ["JE_ARROW_MALLOC_CONF"], os.getpid()]
os.environ["SET_BY_GOOD"] = "1"
dict(os.environ)
print("to stdout")
os.write(2, b"to stderr\\n")
"""
DRIVER_LIBRARY = """
import _ctypes, ctypes, pathlib, shutil
library = pathlib.Path(__file__).with_name("libcuda.so.1")
shutil.copy(_ctypes.__file__, library)
ctypes.CDLL(str(library))
"""
TRAIN = "import good, json, os\nprint(json.dumps([*good.FACTS, os.getpid(), good.__file__]))\n"
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(900,), daemon=True).start()\n"
UNFIT = {
    THREAD: "starts a thread",
    "import threads_inside, json.tool": "bad: threads_inside starts a thread",
    "import subprocess\nsubprocess.Popen(['sleep', '900'])": "its import starts a process",
    "file = open('/dev/null')": "its import leaves /dev/null open",
    "import socket\nmine = socket.socket()": "its import leaves socket:[",
    "import signal\nsignal.signal(signal.SIGUSR2, print)": "its import handles a signal",
    "import os\nos.chdir('/')": "its import changes the working directory",
    "import os\nos.environ.get('LOCAL_RANK', '0')": "its import asks for LOCAL_RANK, which each rank has of its own",
    DRIVER_LIBRARY: "its import looks for accelerators",
    "import jax": "its import takes jax, which is not to be forked",
    "import yours": "/code/yours.py, which may change",
    "raise ValueError('no such thing')": "bad: ValueError: no such thing",
    "raise SystemExit": "bad: SystemExit",
    "import os\nos._exit(3)": "its import ended the process with exit code 3",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)": "its import ended the process with SIGSEGV",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    made = tmp_path / "site-packages"
    made.mkdir()
    (made / "good.py").write_text(GOOD)
    for name in ("after", "jax"):
        (made / f"{name}.py").write_text("")
    (made / "threads_inside.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(900,), daemon=True).start()"
    )
    code = tmp_path / "code"
    code.mkdir()
    (code / "yours.py").write_text("")
    return made


def keep(site: Path, *imports: tuple[str, tuple[str, ...]], bounds=(20.0, 60.0), code_dir=None) -> Any:
    """Return what was kept, how many, why not more, what was printed, the threads and the modules."""
    code = str(site.parent / "code")
    given = {"imports": imports, "first": code, "script": "train.py", "code_dir": code_dir or code}
    words = json.dumps({**given, "site": str(site), "bounds": bounds})
    env = {**os.environ, "RANK_OF_NOBODY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_packages_are_kept_in_the_order_of_the_script(site):
    kept, done, left, said, threads, modules = keep(site, ("good", ()), ("good", ("FACTS",)), ("after", ()))
    assert (kept, done, left, threads) == (["good", "after"], 3, "", 1)
    assert sorted(said.splitlines()) == ["to stderr", "to stdout"]
    assert {"good", "after"} <= set(modules)


def test_pyarrow_itself_starts_no_thread_and_is_kept(site):
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the extra `data` brings it")
    kept, done, left, _, threads, modules = keep(site, ("pyarrow", ()), ("pyarrow.compute", ()), ("after", ()))
    assert (kept, done, left, threads) == (["pyarrow", "after"], 3, "", 1)
    assert "pyarrow.compute" in modules


@pytest.mark.parametrize("body", UNFIT)
def test_a_package_that_leaves_something_behind_is_left_to_the_ranks(site, body):
    (site / "bad.py").write_text(body + "\n")
    kept, done, left, _, threads, modules = keep(site, ("good", ()), ("bad", ()), ("after", ()))
    assert (kept, done, threads) == (["good"], 1, 1)
    assert UNFIT[body] in left
    assert not {"bad", "after", "threads_inside"} & set(modules)


@pytest.mark.parametrize(
    ("bounds", "said"), [((0.2, 60.0), "its import hung for 0.2 s"), ((20.0, 0.5), "not imported within 0.5 s")]
)
def test_an_import_that_hangs_is_ended_with_what_it_started(site, bounds, said):
    note = site / "child"
    hangs = "import pathlib, signal, subprocess\nchild = subprocess.Popen(['sleep', '900'])\n"
    (site / "hangs.py").write_text(f"{hangs}pathlib.Path({str(note)!r}).write_text(str(child.pid))\nsignal.pause()\n")
    kept, _, left, *_ = keep(site, ("hangs", ()), bounds=bounds)
    assert kept == []
    assert said in left
    assert not note.exists() or not alive(int(note.read_text()))


def test_an_import_that_is_slow_on_a_busy_machine_does_not_hang():
    pace = early_imports._Pace(100.0)
    assert not pace.hangs(119.0, 0, 0.0)
    assert not pace.hangs(138.0, 1, 0.0), "a new module"
    assert not pace.hangs(157.0, 1, 0.1), "some processor time"
    assert pace.hangs(177.0, 1, 0.1), "asleep"
    assert not pace.hangs(178.0, 1, 19.9)
    assert pace.hangs(179.0, 1, 20.0), "at work for ever"
    assert not pace.hangs(180.0, 2, 20.0)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("yours", "yours is not in site-packages, and may change"),
        ("not_there", "there is no not_there"),
    ],
)
def test_what_was_not_installed_is_not_tried(site, name, said):
    kept, _, left, *_ = keep(site, (name, ()))
    assert kept == []
    assert said in left


def test_without_the_folder_of_the_code_nothing_is_imported(site):
    kept, done, left, *_ = keep(site, ("good", ()), code_dir="/not/there")
    assert (kept, done) == ([], 0)
    assert "No such file" in left


@pytest.fixture
def server(site, monkeypatch) -> Iterator[Server]:
    monkeypatch.syspath_prepend(str(site))
    code = site.parent / "code"
    (code / "train.py").write_text(
        "import good, json, os\nprint(json.dumps([*good.FACTS, os.getpid(), good.__file__]))\n"
    )
    early = preload.Preload((), preload.leading("train.py", code), str(code), "train.py", str(code))
    made = Server(site.parent, early, env={"OWN": "1"})
    yield made
    made.close()


def test_ranks_find_imported_what_the_server_has_kept(server, site):
    code = site.parent / "code"
    for rank in (0, 1):
        assert server.run("module", "train.py", rank=rank, code_dir=code)["status"] == 0
        noise, facts = server.log(rank).splitlines()[:-1], json.loads(server.log(rank).splitlines()[-1])
        assert sorted(noise) == ["to stderr", "to stdout"]
        assert facts == [
            *(str(code / "train.py"), str(code), str(code), "background_thread:false"),
            *(server.helper.pid, facts[5], str(site / "good.py")),
        ]
        assert facts[5] != server.helper.pid


def test_a_rank_begun_anew_imports_for_itself(server, site):
    (site / "good.py").write_text("import os\nFACTS = [os.environ.get('SET_BY_GOOD'), os.getpid()]\n")
    assert server.run("module", "train.py", code_dir=site.parent / "code", anew=True)["status"] == 0
    unset, imported, rank, _ = json.loads(server.log())
    assert (unset, imported) == (None, rank)
    assert server.run("module", "raises.py", code_dir=site.parent / "code", anew=True)["words"]["fatal"]


def test_what_an_import_set_stays_unless_the_rank_is_told_otherwise(server, site):
    (site.parent / "code" / "says.py").write_text("import os\nprint(os.environ['SET_BY_GOOD'], os.environ['OWN'])\n")
    for rank, env in enumerate(({}, {"SET_BY_GOOD": "2"})):
        server.run("module", "says.py", rank=rank, env=env, code_dir=site.parent / "code")
        assert server.log(rank).splitlines()[-1] == f"{rank + 1} 1"


def test_a_server_that_took_the_place_of_another_ends_as_one(server):
    os.kill(server.helper.pid, signal.SIGKILL)
    server.next("gone")
    assert server.helper.wait(20) == 1


def test_the_log_of_rank_0_says_once_what_was_left_to_the_ranks(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    early = preload.Preload((), (("threads_inside", ()),), str(site.parent / "code"), "yours.py", "/")
    server = Server(site.parent, early)
    try:
        for rank, incarnation in ((0, 1), (0, 2), (1, 1)):
            server.run("module", "yours.py", rank=rank, incarnation=incarnation, code_dir=site.parent / "code")
        why = "threads_inside: threads_inside starts a thread"
        assert server.log(0) == f"[dljob] left to be imported by each rank: {why}\n"
        assert server.log(1) == ""
    finally:
        server.close()


def test_ranks_begin_anew_where_an_early_import_has_loaded_a_driver(site, monkeypatch, caplog):
    monkeypatch.syspath_prepend(str(site))
    (site / "drives.py").write_text(DRIVER_LIBRARY)
    (site.parent / "says.py").write_text("import sys\nprint('drives' in sys.modules, 'good' in sys.modules)\n")
    caplog.set_level("INFO", "dljob.runtime.worker")
    server = Server(site.parent, preload.Preload(("drives",), (("good", ()),), str(site.parent), "says.py", "/"))
    try:
        assert server.run("module", "says.py", code_dir=site.parent)["status"] == 0
        assert server.log() == "False False\n"
        assert server.helper.imported == 0
        assert "importing drives has loaded libcuda.so.1, which is not to be forked" in caplog.text
    finally:
        server.close()


def test_ranks_draw_numbers_of_their_own(tmp_path):
    early = preload.Preload(("numpy.random", "random"))
    (tmp_path / "draws.py").write_text("import numpy, random\nprint(numpy.random.random(), random.random())\n")
    server = Server(tmp_path, early)
    try:
        drawn = set()
        for rank in range(3):
            server.run("module", "draws.py", rank=rank, code_dir=tmp_path)
            drawn.update(server.log(rank).split())
        assert len(drawn) == 6
    finally:
        server.close()
