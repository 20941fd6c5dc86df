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
