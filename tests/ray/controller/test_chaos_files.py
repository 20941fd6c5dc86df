"""The five faults files, done to a job of this machine: each comes to the decisions of the simulator."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from chaos_kit import JOB, USER, compare
from cli_kit import Place

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


@pytest.mark.slow
def test_faults_on_a_machine_come_to_the_decisions_of_the_simulator(tmp_path: Path) -> None:
    place = Place(tmp_path)
    shutil.copy(USER, tmp_path)
    shutil.copy(JOB, tmp_path / "hurt.yaml")
    with place.running("run", tmp_path / "hurt.yaml") as run:
        run.until(lambda line: "] Running" in line, 120)

        def inject(file: Path) -> str:
            done = place.dljob("chaos", "hurt", file, "-o", "json", timeout=120)
            assert done.stdout, done.stderr
            return done.stdout

        compare(inject)
        (place.entry("hurt")["folder"] / "enough").touch()
        code, _, errors = run.end(120)
    assert code == 0, errors
