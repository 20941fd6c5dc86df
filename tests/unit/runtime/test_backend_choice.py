"""Which backend a job gets: the flag, the spec, the environment, ray; and never one in place of another."""

from __future__ import annotations

from pathlib import Path

import pytest

from dljob.cli import main
from dljob.errors import UsageError
from dljob.runtime import embedded
from dljob.runtime.backend import chosen, factory, installed


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
def test_flag_then_spec_then_environment_then_ray(flag: str | None, spec: str | None, env: dict[str, str], name: str):
    assert chosen(flag, spec, env) == name


def test_ray_is_installed_by_its_entry_point() -> None:
    assert installed()["ray"].value == "dljob.runtime.ray_backend:RayBackend"


def test_an_unknown_backend_names_those_that_are_installed() -> None:
    with pytest.raises(UsageError, match=r"'yr' is not installed; installed: ray"):
        factory("yr")


def test_a_job_is_refused_before_a_ray_is_started_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    (tmp_path / "w.py").write_text("class W: ...")
    file = tmp_path / "dljob.yaml"
    file.write_text(
        "apiVersion: dljob.io/v1alpha1\nkind: DLJob\nmetadata: {name: a}\n"
        "spec:\n  roles:\n  - {name: w, type: Actor, replicas: 1, entrypoint: {class: w.W}}\n"
    )
    monkeypatch.setenv("DISTRIBUTED_BACKEND", "YuanRong")
    monkeypatch.setattr(embedded, "EmbeddedRay", lambda *_, **__: pytest.fail("a Ray was started"))
    assert main.run(["run", str(file)]) == 2
    assert "the backend 'yr' is not installed; installed: ray" in capsys.readouterr().err
