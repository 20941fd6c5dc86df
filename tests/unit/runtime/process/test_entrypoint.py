"""Dotted paths and signatures."""

from __future__ import annotations

import sys

import pytest

from dljob.runtime.process.entrypoint import EntrypointError, resolve, takes_context


@pytest.fixture
def code(tmp_path, monkeypatch):
    package = tmp_path / "users_pkg"
    (package / "sub").mkdir(parents=True)
    (package / "__init__.py").write_text("def top(): ...\n")
    (package / "sub" / "__init__.py").write_text("")
    (package / "sub" / "mod.py").write_text("class Outer:\n    class Inner: ...\nvalue = 3\n")
    (package / "broken.py").write_text("import no_such_thing\n")
    (package / "raises.py").write_text("raise ValueError('at import')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("users_pkg")]:
        del sys.modules[name]


@pytest.mark.parametrize("path", ["users_pkg.top", "users_pkg.sub.mod.Outer", "users_pkg.sub.mod.Outer.Inner"])
def test_an_entrypoint_that_exists_is_found(code, path):
    assert resolve(path).__name__ == path.rpartition(".")[2]


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("Trainer", "ImportError", "has no module"),
        ("users_pkg.tpo", "ImportError", "did you mean 'top'"),
        ("users_pkg.sub.mod.Outer.Iner", "ImportError", "did you mean 'Inner'"),
        ("users_pkg.sub.mod.value", "TypeError", "cannot be called"),
    ],
)
def test_a_missing_entrypoint_is_named(code, path, kind, words):
    with pytest.raises(EntrypointError, match=words) as caught:
        resolve(path)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("no_such_pkg.x", ModuleNotFoundError),
        ("users_pkg.nothing.x", ModuleNotFoundError),
        ("users_pkg.broken.x", ModuleNotFoundError),
        ("users_pkg.raises.x", ValueError),
    ],
)
def test_errors_of_the_users_import_pass_through(code, path, error):
    with pytest.raises(error):
        resolve(path)


def test_import_error_inside_a_module_names_what_is_missing(code):
    with pytest.raises(ModuleNotFoundError) as caught:
        resolve("users_pkg.broken.x")
    assert caught.value.name == "no_such_thing"


def default(a=1): ...
def one(worker): ...
def optional(worker, x=1, *args, **kwargs): ...
def two(a, b): ...
def keyword(*, a): ...


@pytest.mark.parametrize(("target", "takes"), [(default, False), (one, True), (optional, True), (dict, False)])
def test_whether_a_callable_takes_a_context_follows_from_its_signature(target, takes):
    assert takes_context(target, "x") is takes


@pytest.mark.parametrize("target", [two, keyword])
def test_other_callables_are_refused_with_the_accepted_forms(target):
    with pytest.raises(EntrypointError, match="takes no argument, or one"):
        takes_context(target, "users.x")
