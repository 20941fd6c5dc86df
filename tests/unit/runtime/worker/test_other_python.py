"""Ranks in an interpreter in which nothing of dljob is installed."""

from __future__ import annotations

from pathlib import Path

from fork_kit import Server
from pythons import interpreter

from dljob.linux import interpreter as pythons

OWN = "import dljob, sys; print(dljob.__file__, *sys.version_info[:2], 'ray' in sys.modules)"


def test_another_python_runs_a_rank_with_this_dljob_and_nothing_else(tmp_path):
    python = pythons.find(interpreter("3.12"))
    library = pythons.library(str(tmp_path))
    assert pythons.library(str(tmp_path)) == library
    assert [each.name for each in Path(library).iterdir()] == ["dljob"]
    env = pythons.environment(python, library, {"PYTHONPATH": "/users/own", "PATH": "/bin"})
    assert env == {"PATH": f"{Path(python.path).parent}:/bin", "PYTHONPATH": f"{library}:/users/own"}
    (tmp_path / "own.py").write_text(OWN)
    server = Server(tmp_path, python=python.path, env=env)
    try:
        ended = server.run("module", "own.py", code_dir=tmp_path)
        assert (ended["status"], server.log()) == (0, f"{library}/dljob/__init__.py 3 12 False\n")
        ended = server.run("command", "python", "-c", OWN, rank=1, code_dir=tmp_path)
        assert (ended["status"], server.log(1)) == (0, f"{library}/dljob/__init__.py 3 12 False\n")
    finally:
        server.close()


def test_another_python_finds_the_codes_folder_behind_its_own_modules(tmp_path):
    python, library = pythons.find(interpreter("3.12")), pythons.library(str(tmp_path))
    code = tmp_path / "code"
    (code / "scripts").mkdir(parents=True)
    (code / "pkg.py").write_text("X = 5")
    (code / "queue.py").write_text("raise RuntimeError('it hides the library')")
    (code / "scripts" / "train.py").write_text(
        "import queue, pkg, sys; print(pkg.X, queue.Queue.__name__, sys.path[-1])"
    )
    env = pythons.environment(python, library, {"PATH": "/bin"})
    server = Server(tmp_path, python=python.path, env=env, import_path=(str(code), ""))
    try:
        for rank, fresh in enumerate((False, True)):
            ended = server.run("module", "scripts/train.py", code_dir=code, rank=rank, fresh=fresh)
            assert (ended["status"], server.log(rank)) == (0, f"5 Queue {code}\n")
    finally:
        server.close()
