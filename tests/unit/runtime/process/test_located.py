"""Where user code is when nobody has said: where Ray starts the process."""

from __future__ import annotations

from life_kit import role_of

from dljob.runtime.process.environment import located
from dljob.runtime.process.messages import HostSpec, JobInfo


def spec(code_dir: str) -> HostSpec:
    return HostSpec(JobInfo("u", "j", "/j", "dljob", "u/master", 30, 0.2, code_dir, (("w", 1),)), role_of("a.B"), 1)


def test_a_named_code_folder_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located(spec("/code")) == spec("/code")


def test_the_code_folder_defaults_to_the_current_one_unless_it_is_the_root(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert located(spec("")) == spec(str(tmp_path))
    monkeypatch.chdir("/")
    assert located(spec("")) == spec("")
