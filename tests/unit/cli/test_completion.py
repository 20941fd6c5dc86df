"""completion: a shell completes names of jobs and roles."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dljob.api import registry
from dljob.cli import main
from dljob.cli.commands.completion import NAMES, OF_JOBS, OF_ROLES, names_after

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(autouse=True)
def jobs(home: Path) -> None:
    for number, name in enumerate(("hello", "grpo", "hello"), 1):
        uid = str(number) * 32
        folder = registry.folder_of(name, uid)
        registry.register(registry.RegistryEntry(name, uid, str(folder), started=float(number)))
        status = {
            "name": name,
            "uid": uid,
            "phase": "Succeeded",
            "roles": [{"name": "trainer"}, {"name": "$(id>x)"}, 3, {}, {"name": "rollout"}],
        }
        (folder / "status.json").write_text(json.dumps(status))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("status", ["hello", "grpo"]),
        ("logs -f", ["hello", "grpo"]),
        ("delete grpo", ["hello", "grpo"]),
        ("logs grpo", ["trainer", "rollout"]),
        ("logs grpo --role", ["trainer", "rollout"]),
        ("scale grpo", ["trainer=", "rollout="]),
        ("scale grpo trainer=2", ["trainer=", "rollout="]),
        ("why grpo", []),
        ("logs none", []),
        ("run", []),
        ("", []),
    ],
)
def test_names_follow_a_command_that_takes_them(words, names, capsys):
    assert names_after(words.split()) == names
    assert main.run(["completion", "names", "--", *words.split()]) == 0
    assert capsys.readouterr().out.split() == names


def test_each_command_about_a_job_of_this_machine_completes_its_name():
    elsewhere = {"run", "submit", "suspend", "resume", "doctor"}
    assert {*main.ABOUT_JOBS, "advise", "replay", "trace", "delete"} - elsewhere == set(OF_JOBS)
    assert set(OF_ROLES) <= set(OF_JOBS)


@pytest.mark.parametrize("shell", NAMES)
def test_a_script_has_commands_options_and_names(shell, capsys):
    assert main.run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "dljob completion names -- " in script
    assert all(command in script for command in main.COMMANDS)
    assert "{of_jobs}" not in script


def test_bash_completes_names(tmp_path):
    (tmp_path / "dljob").write_text(f'#!/bin/sh\nexec {sys.executable} -m dljob "$@"\n')
    (tmp_path / "dljob").chmod(0o755)
    line = """
source <(dljob completion bash)
complete_words() {
    COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _dljob_with_names 2>/dev/null; echo "${COMPREPLY[@]}"
}
complete_words dljob status he
complete_words dljob logs grpo tr
complete_words dljob scale grpo ""
complete_words dljob status --out
complete_words dljob sta
"""
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", line], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["hello", "trainer", "trainer= rollout=", "--output", "status stack"]
