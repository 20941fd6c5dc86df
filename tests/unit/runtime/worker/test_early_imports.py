"""What a fork server imports of a script's packages, and which it leaves to the ranks. No Ray."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fork_kit import Server

from dljob.runtime.process import preload

DRIVER = """
import json, os, sys
from dljob.linux import descendants
from dljob.runtime.worker import early_imports
given = json.loads(sys.argv[1])
sys.path.insert(0, given.pop("site"))
early_imports.FORKED |= {"good", "bad", "after", "yours", "not_there"}
before = list(sys.path), sys.modules["__main__"]
notes = early_imports.keep(**given)
assert before == (sys.path, sys.modules["__main__"])
assert "JE_ARROW_MALLOC_CONF" not in os.environ
print(json.dumps([notes.kept, notes.done, notes.left, notes.said.decode(), notes.unfit, sorted(sys.modules)]))
sys.stdout.flush()
descendants.kill_all()
os._exit(0)
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
    THREAD: "started a thread",
    "import subprocess\nsubprocess.Popen(['sleep', '900'])": "started a process",
    DRIVER_LIBRARY: "loaded libcuda.so.1",
}
FAILS = {"raise ValueError('no such thing')": "bad: ValueError: no such thing", "raise SystemExit": "bad: SystemExit: "}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    made = tmp_path / "site-packages"
    made.mkdir()
    (made / "good.py").write_text(GOOD)
    (made / "einops.py").write_text(GOOD)
    (made / "regex.py").write_text(THREAD)
    (made / "after.py").write_text("")
    (made / "starts_thread.py").write_text(THREAD)
    code = tmp_path / "code"
    code.mkdir()
    (code / "yours.py").write_text("")
    return made


def keep(site: Path, *imports: tuple[str, tuple[str, ...]], code_dir=None) -> Any:
    """Return what was kept, how many, why not more, what was printed, why it may not be forked, and the modules."""
    code = str(site.parent / "code")
    given = {"imports": imports, "first": code, "script": "train.py", "code_dir": code_dir or code}
    words = json.dumps({**given, "site": str(site)})
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_packages_are_kept_in_the_order_of_the_script(site):
    kept, done, left, said, unfit, modules = keep(site, ("good", ()), ("good", ("FACTS",)), ("after", ()))
    assert (kept, done, left, unfit) == (["good", "after"], 3, "", "")
    assert sorted(said.splitlines()) == ["to stderr", "to stdout"]
    assert {"good", "after"} <= set(modules)


def test_pyarrow_itself_starts_no_thread_and_is_kept(site):
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the extra `data` brings it")
    kept, done, left, _, unfit, modules = keep(site, ("pyarrow", ()), ("pyarrow.compute", ()), ("after", ()))
    assert (kept, done, left, unfit) == (["pyarrow", "after"], 3, "", "")
    assert "pyarrow.compute" in modules


def test_a_pool_of_threads_that_ends_at_a_fork_is_nothing_left_behind(site, monkeypatch):
    """That of OpenBLAS, which numpy starts where a rank has two CPUs or more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    kept, done, left, _, unfit, _ = keep(site, ("numpy", ()))
    assert (kept, done, left, unfit) == (["numpy"], 1, "", "")


@pytest.mark.parametrize("body", UNFIT)
def test_a_package_that_leaves_something_behind_is_noticed(site, body):
    (site / "bad.py").write_text(body + "\n")
    assert keep(site, ("good", ()), ("bad", ()))[4] == UNFIT[body]


@pytest.mark.parametrize("body", FAILS)
def test_a_package_that_cannot_be_imported_is_left_to_the_ranks_with_all_that_follow(site, body):
    (site / "bad.py").write_text(body + "\n")
    kept, done, left, _, unfit, modules = keep(site, ("good", ()), ("bad", ()), ("after", ()))
    assert (kept, done, left, unfit) == (["good"], 1, FAILS[body], "")
    assert not {"bad", "after"} & set(modules)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("yours", "yours is not in site-packages, and may change"),
        ("not_there", "not_there is not in site-packages, and may change"),
        ("starts_thread", "starts_thread is not on the list of packages that may be imported before a fork"),
    ],
)
def test_what_is_not_installed_or_not_listed_is_not_imported(site, name, said):
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
        "import einops, json, os\nprint(json.dumps([*einops.FACTS, os.getpid(), einops.__file__]))\n"
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
            *(server.helper.pid, facts[5], str(site / "einops.py")),
        ]
        assert facts[5] != server.helper.pid


def test_a_rank_begun_anew_imports_for_itself(server, site):
    (site / "einops.py").write_text("import os\nFACTS = [os.environ.get('SET_BY_GOOD'), os.getpid()]\n")
    assert server.run("module", "train.py", code_dir=site.parent / "code", anew=True)["status"] == 0
    unset, imported, rank, _ = json.loads(server.log())
    assert (unset, imported) == (None, rank)
    assert server.run("module", "raises.py", code_dir=site.parent / "code", anew=True)["words"]["fatal"]


def test_what_an_import_set_stays_unless_the_rank_is_told_otherwise(server, site):
    (site.parent / "code" / "says.py").write_text("import os\nprint(os.environ['SET_BY_GOOD'], os.environ['OWN'])\n")
    for rank, env in enumerate(({}, {"SET_BY_GOOD": "2"})):
        server.run("module", "says.py", rank=rank, env=env, code_dir=site.parent / "code")
        assert server.log(rank).splitlines()[-1] == f"{rank + 1} 1"


def test_the_log_of_rank_0_says_once_what_was_left_to_the_ranks(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    early = preload.Preload((), (("starts_thread", ()),), str(site.parent / "code"), "yours.py", "/")
    server = Server(site.parent, early)
    try:
        for rank, incarnation in ((0, 1), (0, 2), (1, 1)):
            server.run("module", "yours.py", rank=rank, incarnation=incarnation, code_dir=site.parent / "code")
        why = "starts_thread is not on the list of packages that may be imported before a fork"
        assert server.log(0) == f"[dljob] left to be imported by each rank: {why}\n"
        assert server.log(1) == ""
    finally:
        server.close()


@pytest.mark.parametrize(
    ("early", "said"),
    [
        ((("drives",), (("einops", ()),)), "importing drives has loaded libcuda.so.1"),
        (((), (("einops", ()), ("regex", ()))), "importing einops, regex has started a thread"),
    ],
)
def test_ranks_begin_anew_where_an_early_import_has_left_something_behind(site, monkeypatch, caplog, early, said):
    monkeypatch.syspath_prepend(str(site))
    (site / "drives.py").write_text(DRIVER_LIBRARY)
    (site.parent / "says.py").write_text("import sys\nprint({'drives', 'einops', 'regex'} & {*sys.modules})\n")
    caplog.set_level("INFO", "dljob.runtime.worker")
    server = Server(site.parent, preload.Preload(*early, str(site.parent), "says.py", "/"))
    try:
        assert server.run("module", "says.py", code_dir=site.parent)["status"] == 0
        assert server.log() == "set()\n"
        assert server.helper.imported == 0
        assert f"{said}, which is not to be forked" in caplog.text
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
