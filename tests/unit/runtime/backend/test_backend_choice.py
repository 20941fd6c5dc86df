"""Which backend a job gets: the flag, the spec, the environment, ray; and never one in place of another."""

from __future__ import annotations

import pytest

from dljob.cli import main
from dljob.errors import UsageError
from dljob.runtime.backend import embedded
from dljob.runtime.backend.interface import chosen, factory, installed


@pytest.mark.parametrize(
    ("flag", "spec", "env", "name"),
    [
        (None, None, {}, "ray"),
        (None, None, {"DISTRIBUTED_BACKEND": ""}, "ray"),
        (None, None, {"DISTRIBUTED_BACKEND": " "}, "ray"),
        (None, None, {"DISTRIBUTED_BACKEND": "YuanRong"}, "yr"),
        (None, "Ray", {"DISTRIBUTED_BACKEND": "yr"}, "ray"),
        ("yr", "ray", {"DISTRIBUTED_BACKEND": "ray"}, "yr"),
    ],
)
def test_the_backend_is_chosen_by_flag_then_spec_then_environment(flag, spec, env, name):
    assert chosen(flag, spec, env) == name


def test_ray_and_yr_are_installed_by_their_entry_points():
    assert installed()["ray"].value == "dljob.runtime.backend.ray_backend:RayBackend"
    assert installed()["yr"].value == "dljob.runtime.yr.backend:YrBackend"


def test_an_unknown_backend_names_those_that_are_installed():
    with pytest.raises(UsageError, match=r"'spark' is not installed; installed: ray, yr"):
        factory("spark")


def test_a_job_is_refused_before_a_ray_is_started_for_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "w.py").write_text("class W: ...")
    file = tmp_path / "dljob.yaml"
    file.write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: a}\n"
        "spec:\n  roles:\n  - {name: w, type: Actor, replicas: 1, entrypoint: {class: w.W}}\n"
    )
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "Spark")
    monkeypatch.setattr(embedded, "EmbeddedRay", lambda *_, **__: pytest.fail("a Ray was started"))
    assert main.run(["run", str(file)]) == 2
    assert "the backend 'spark' is not installed; installed: ray, yr" in capsys.readouterr().err


@pytest.mark.parametrize("named", [True, False])
def test_features_yr_lacks_are_refused_together_before_anything_starts(tmp_path, monkeypatch, capsys, named):
    (tmp_path / "w.py").touch()
    file = tmp_path / "dljob.yaml"
    file.write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: a}\nspec:\n  checkpoint: {path: /c}\n"
        + ("  backend: {name: yr}\n" if named else "")
        + "  roles:\n  - {name: w, type: Elastic, replicas: 1, entrypoint: {module: w.py}}\n"
    )
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "ray" if named else "yuanrong")
    monkeypatch.setattr(embedded, "EmbeddedRay", lambda *_, **__: pytest.fail("a Ray was started"))
    assert main.run(["run", str(file)]) == 2
    said = capsys.readouterr().err
    assert "spec.roles[0].type: the backend yr lacks elastic: ranks that form one torch world" in said
    assert "spec.checkpoint: the backend yr lacks checkpoints" in said
    assert "run it on Ray" in said


def test_a_fault_file_is_refused_for_other_backends_than_ray(tmp_path, monkeypatch, capsys):
    (tmp_path / "w.py").touch()
    file = tmp_path / "dljob.yaml"
    file.write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: a}\n"
        "spec:\n  roles:\n  - {name: w, entrypoint: {module: w.py}}\n"
    )
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "yr")
    assert main.run(["run", str(file), "--faults", str(file)]) == 2
    assert "--faults, --pretend and --resume are for a run on Ray" in capsys.readouterr().err
