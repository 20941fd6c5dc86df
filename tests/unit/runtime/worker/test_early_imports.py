"""What a fork server imports of a script's packages, and which it leaves to the ranks. No Ray."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from fork_kit import Server

from dljob.runtime.process import preload
from dljob.runtime.worker import helper

DRIVER = """
import json, os, sys
from dljob.linux import descendants
from dljob.runtime.worker import early_imports
preload = json.loads(sys.argv[1])
sys.path.insert(0, preload.pop("site"))
early_imports.FORK_SAFE_PACKAGES |= {"good", "bad", "after", "yours", "not_there"}
before = list(sys.path), sys.modules["__main__"], dict(os.environ), os._Environ.__getitem__
announced = []
early = early_imports.import_early(preload, announced.append)
assert before[:2] == (sys.path, sys.modules["__main__"])
assert before[2:] == ({name: os.environ[name] for name in os.environ if name != "SET_BY_GOOD"}, os._Environ.__getitem__)
result = {**vars(early), "output": early.output.decode(), "announced": announced, "modules": sorted(sys.modules)}
print(json.dumps(result))
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
    "import unlisted\n": "read LOCAL_RANK (in unlisted)",
    "import os\n'RANK' in os.environ\nraise ValueError\n": "read RANK (in bad)",
    "import os\nos.environb.get(b'CUDA_VISIBLE_DEVICES')\n": "read CUDA_VISIBLE_DEVICES (in bad)",
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
    (made / "unlisted.py").write_text("import os\nLOCAL_RANK = os.getenv('LOCAL_RANK')\n")
    code = tmp_path / "code"
    code.mkdir()
    (code / "yours.py").write_text("")
    return made


def import_early(site: Path, *imports: tuple[str, tuple[str, ...]], code_dir=None) -> SimpleNamespace:
    """Return what became of imports in a process of their own, and which modules it has and announced."""
    code = str(site.parent / "code")
    early = preload.Preload((), imports, code, "train.py", code_dir or code)
    words = json.dumps({**asdict(early), "site": str(site)})
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, words],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "7", "RANK": "7"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return SimpleNamespace(**json.loads(done.stdout))


def test_packages_are_imported_in_the_order_of_the_script(site):
    early = import_early(site, ("good", ()), ("good", ("FACTS",)), ("after", ()))
    assert (early.packages, early.import_count, early.stop_reason) == (["good", "after"], 3, "")
    assert (early.announced, early.unfit) == (["good", "good", "after"], False)
    assert sorted(early.output.splitlines()) == ["to stderr", "to stdout"]
    assert {"good", "after"} <= set(early.modules)


def test_pyarrow_itself_starts_no_thread(site):
    if find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed: the extra `data` brings it")
    early = import_early(site, ("pyarrow", ()), ("pyarrow.compute", ()), ("after", ()))
    assert (early.packages, early.import_count, early.unfit) == (["pyarrow", "after"], 3, False)
    assert "pyarrow.compute" in early.modules


def test_a_pool_of_threads_that_ends_at_a_fork_is_nothing_left_behind(site, monkeypatch):
    """That of OpenBLAS, which numpy starts where a rank has two CPUs or more."""
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    early = import_early(site, ("numpy", ()))
    assert (early.packages, early.import_count, early.unfit) == (["numpy"], 1, False)


@pytest.mark.parametrize("body", UNFIT)
def test_a_package_behind_which_no_rank_may_be_forked_is_noticed(site, body):
    (site / "bad.py").write_text(body + "\n")
    early = import_early(site, ("good", ()), ("bad", ()))
    assert (early.packages, early.import_count, early.unfit) == ([], 0, True)
    assert early.stop_reason == f"importing good, bad has {UNFIT[body]}, which is not to be forked"


def test_a_package_that_copies_the_environment_reads_no_variable_of_a_rank(site):
    (site / "bad.py").write_text("import os\nCOPIES = dict(os.environ), os.environ.copy(), [*os.environ.items()]\n")
    assert import_early(site, ("bad", ())).packages == ["bad"]


@pytest.mark.parametrize("body", FAILS)
def test_a_package_that_cannot_be_imported_is_left_to_the_ranks_with_all_that_follow(site, body):
    (site / "bad.py").write_text(body + "\n")
    early = import_early(site, ("good", ()), ("bad", ()), ("after", ()))
    assert (early.packages, early.import_count, early.unfit) == (["good"], 1, False)
    assert early.stop_reason == FAILS[body]
    assert not {"bad", "after"} & set(early.modules)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("yours", "yours is not in site-packages, and may change"),
        ("not_there", "not_there is not in site-packages, and may change"),
        ("starts_thread", "starts_thread is not on the list of packages that may be imported before a fork"),
    ],
)
def test_what_is_not_installed_or_not_listed_is_not_imported(site, name, said):
    early = import_early(site, (name, ()))
    assert early.packages == []
    assert said in early.stop_reason


def test_without_the_folder_of_the_code_nothing_is_imported(site):
    early = import_early(site, ("good", ()), code_dir="/not/there")
    assert (early.packages, early.import_count) == ([], 0)
    assert "No such file" in early.stop_reason


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


def test_ranks_find_imported_what_the_server_has_imported(server, site):
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


def test_a_rank_in_a_fresh_interpreter_imports_for_itself(server, site):
    (site / "einops.py").write_text("import os\nFACTS = [os.environ.get('SET_BY_GOOD'), os.getpid()]\n")
    assert server.run("module", "train.py", code_dir=site.parent / "code", fresh=True)["status"] == 0
    unset, imported, rank, _ = json.loads(server.log())
    assert (unset, imported) == (None, rank)
    assert server.run("module", "raises.py", code_dir=site.parent / "code", fresh=True)["words"]["fatal"]


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
def test_no_rank_is_forked_where_an_early_import_has_left_something_behind(site, monkeypatch, caplog, early, said):
    monkeypatch.syspath_prepend(str(site))
    (site / "drives.py").write_text(DRIVER_LIBRARY)
    (site.parent / "says.py").write_text("import sys\nprint({'drives', 'einops', 'regex'} & {*sys.modules})\n")
    caplog.set_level("INFO", "dljob.runtime.worker")
    server = Server(site.parent, preload.Preload(*early, str(site.parent), "says.py", "/"))
    try:
        assert server.run("module", "says.py", code_dir=site.parent)["status"] == 0
        notice = f"[dljob] left to be imported by each rank: {said}, which is not to be forked\n"
        assert server.log() == f"{notice}set()\n"
        assert server.helper.import_count == 0
        assert f"{said}, which is not to be forked" in caplog.text
    finally:
        server.close()


HANGS = {
    "python": "import time\ntime.sleep(900)\n",
    "native code with the GIL": "import ctypes\nctypes.PyDLL(None).sleep(900)\n",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n",
}
CRASHES = {
    "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n": "ended the fork server by SIGSEGV",
    "import os\nos._exit(3)\n": "ended the fork server with exit code 3",
    "import os\nos._exit(0)\n": "ended the fork server with exit code 0",
    "import os\nos.closerange(3, 64)\n": "ended the fork server with exit code 1",
}


@pytest.fixture
def early(site, monkeypatch) -> preload.Preload:
    """The imports of a script, of which tests write the second package; the script prints who has imported it."""
    monkeypatch.syspath_prepend(str(site))
    (site.parent / "says.py").write_text("import os, sys\nprint('einops' in sys.modules, 'regex' in sys.modules)\n")
    return preload.Preload((), (("einops", ()), ("regex", ())), str(site.parent), "says.py", "/")


def expect_ranks_that_import_for_themselves(early: preload.Preload, words: str) -> None:
    folder = Path(early.first)
    server = Server(folder, early)
    try:
        for rank, incarnation in ((0, 1), (1, 1), (0, 2)):
            assert server.run("module", "says.py", rank=rank, incarnation=incarnation, code_dir=folder)["status"] == 0
        line = rf"\[dljob\] left to be imported by each rank: importing regex {re.escape(words)} after [\d.]+ s\n"
        for rank, lives in ((0, 2), (1, 1)):
            assert re.fullmatch(f"({line}False False\n){{{lives}}}", server.log(rank)), server.log(rank)
        assert server.helper.import_count == 0
    finally:
        server.close()


def when_announced(monkeypatch, act: Callable[[], None]) -> None:
    """Have `act` called once the host has heard that the import of `regex` begins."""
    receive = helper._receive

    def receive_event(link) -> bytes:
        message = receive(link)
        if b'"regex"' in message:
            act()
        return message

    monkeypatch.setattr(helper, "_receive", receive_event)


@pytest.mark.parametrize("kind", HANGS)
def test_an_import_that_hangs_is_named_and_left_to_the_ranks(site, early, monkeypatch, kind):
    when_announced(monkeypatch, lambda: monkeypatch.setattr(helper, "EARLY_IMPORTS_S", 0.0))
    (site / "regex.py").write_text(HANGS[kind])
    expect_ranks_that_import_for_themselves(early, "in the fork server had not ended")


@pytest.mark.parametrize("body", CRASHES)
def test_an_import_that_ends_the_fork_server_is_named_and_left_to_the_ranks(site, early, body):
    (site / "regex.py").write_text(body)
    expect_ranks_that_import_for_themselves(early, CRASHES[body])


def test_a_fork_server_ends_with_its_host_while_an_import_hangs(site, early, monkeypatch):
    (site / "regex.py").write_text(HANGS["native code with the GIL"])
    announced, gone = threading.Event(), threading.Event()
    when_announced(monkeypatch, announced.set)
    client = helper.Helper(early, {}, lambda _: None, gone.set)
    assert announced.wait(60)
    client.close()
    assert client.wait(20) == 128 + signal.SIGKILL
    assert gone.wait(20)
    assert not client.failure


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
