"""What of a folder goes along with a job, and what an archive is."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from dljob.api.kubernetes import package
from dljob.api.kubernetes.package import pack
from dljob.errors import UsageError


def tree(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    return root


def test_the_same_files_give_the_same_archive(tmp_path):
    one = tree(tmp_path / "one", "b.py", "a/c.py", "a.py")
    (one / "b.py").chmod(0o755)
    two = tree(tmp_path / "two", "a.py", "a/c.py", "b.py")
    (two / "b.py").chmod(0o700)
    os.utime(two / "a.py", (1, 1))
    first, second = pack(one), pack(two)
    assert first.archive == second.archive
    assert first.digest == second.digest
    assert first.files == ("a.py", "a/c.py", "b.py")
    (two / "a.py").write_text("other")
    assert pack(two).digest != first.digest
    (one / "b.py").chmod(0o644)
    assert pack(one).digest != first.digest


def test_the_archive_unpacks_to_the_files(tmp_path):
    tree(tmp_path / "src", "a.py", "pkg/übung.py")
    (tmp_path / "src" / "a.py").chmod(0o755)
    with zipfile.ZipFile(io.BytesIO(pack(tmp_path / "src").archive)) as archive:
        assert archive.read("pkg/übung.py").decode() == "pkg/übung.py"
        assert archive.getinfo("a.py").external_attr >> 16 & 0o777 == 0o755
        assert archive.testzip() is None


def test_files_that_are_never_code_are_left_out_of_the_archive(tmp_path):
    root = tree(
        tmp_path, "a.py", ".git/config", "x/__pycache__/a.pyc", ".venv/lib/a.py", "env/pyvenv.cfg", "env/bin/python",
        "node_modules/a.js", "x/.hidden", ".mypy_cache/a",
    )  # fmt: skip
    assert pack(root).files == ("a.py", "x/.hidden")


IGNORES = {
    "*.log\n": ["a.log", "x/b.log"],
    "/a.log\n": ["a.log"],
    "x/\n": ["x/a.py", "x/b.log", "x/y/c.txt"],
    "x/*.log\n": ["x/b.log"],
    "**/y\n": ["x/y/c.txt"],
    "x/**\n": ["x/a.py", "x/b.log", "x/y/c.txt"],
    "x/**/c.txt\n": ["x/y/c.txt"],
    "*.log\n!b.log\n": ["a.log"],
    "x/\n!x/a.py\n": ["x/a.py", "x/b.log", "x/y/c.txt"],
    "[ab].log\n": ["a.log", "x/b.log"],
    "[!a].log\n": ["x/b.log"],
    "?.py\n": ["x/a.py"],
    "# a comment\n\n  \nmain.py  \n": ["main.py"],
    "\\#odd\n\\!bang\n": ["#odd", "!bang"],
    "sp\\ \n": ["sp "],
    "y\n": ["x/y/c.txt"],
    "a*g\n": ["a.log"],
    "[a.log\n": [],
    "/\n": [],
    "x/y/\n": ["x/y/c.txt"],
}
FILES = ["a.log", "x/a.py", "x/b.log", "x/y/c.txt", "main.py", "#odd", "!bang", "sp "]


@pytest.mark.parametrize("text", IGNORES)
def test_ignore_files_are_read_as_git_reads_them(text, tmp_path):
    tree(tmp_path, *FILES)
    (tmp_path / ".gitignore").write_text(text)
    gone = sorted(set(FILES) - set(pack(tmp_path).files))
    assert gone == sorted(IGNORES[text])
    if shutil.which("git"):
        subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
        words = ["git", "-c", "core.quotePath=false", "ls-files", "-o", "-i", "--exclude-standard"]
        said = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True)
        assert gone == sorted(line.strip('"') for line in said.stdout.splitlines()), "git says otherwise"


def test_ignore_files_of_folders_within_and_above_and_the_second_kind_count(tmp_path):
    (tmp_path / ".git").mkdir()
    root = tree(tmp_path / "jobs" / "ppo", "a.py", "b.ckpt", "data/big.bin", "data/small.bin", "sub/c.txt", "sub/d.txt")
    (tmp_path / ".gitignore").write_text("*.ckpt\n/jobs/ppo/data/\n")
    (root / ".dljobignore").write_text("!data/\n/data/big.bin\n")
    (root / "sub" / ".gitignore").write_text("/c.txt\n")
    assert pack(root).files == (".dljobignore", "a.py", "data/small.bin", "sub/.gitignore", "sub/d.txt")
    (tmp_path / ".git").rmdir()
    assert "b.ckpt" in pack(root).files, "outside of a repository folders above do not count"


def test_links_out_of_the_folder_are_left_out_and_named(tmp_path):
    root = tree(tmp_path / "src", "a.py", "pkg/b.py")
    (tmp_path / "secret").write_text("s")
    (root / "in.py").symlink_to(root / "a.py")
    (root / "out").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(root / "pkg")
    (root / "nowhere").symlink_to(root / "missing")
    os.mkfifo(root / "pipe")
    made = pack(root)
    assert made.files == ("a.py", "in.py", "pkg/b.py")
    assert made.links == ("folder", "nowhere", "out")


def test_a_folder_too_large_is_refused_with_its_largest_files_and_what_to_do(tmp_path):
    tree(tmp_path, "a.py")
    (tmp_path / "model.bin").write_bytes(os.urandom(1_500_000))
    with pytest.raises(UsageError) as refused:
        pack(tmp_path)
    assert "packs to 1.4 MiB; a ConfigMap holds 1.0 MiB. The largest files: model.bin (1.4 MiB), a.py (4 B)" in str(
        refused.value
    )
    for remedy in (".dljobignore", "spec.image", "--no-upload", "runtimeEnv.working_dir"):
        assert remedy in refused.value.hint
    (tmp_path / ".dljobignore").write_text("*.bin")
    assert len(pack(tmp_path).archive) < 1000


def test_a_huge_folder_is_not_read_to_its_end(tmp_path, monkeypatch):
    tree(tmp_path, *(f"{n}.py" for n in range(30)))
    monkeypatch.setattr(package, "MOST_FILES", 10)
    with pytest.raises(UsageError, match="holds more than 10 files"):
        pack(tmp_path)
    with (tmp_path / "0.bin").open("wb") as sparse:
        sparse.truncate(package.MOST_BYTES + 1)
    with pytest.raises(UsageError, match=r"or 64.0 MiB.*0\.bin \(64\.0 MiB\)"):
        pack(tmp_path)


def test_a_folder_that_cannot_be_packed_is_refused_with_the_reason(tmp_path):
    with pytest.raises(UsageError, match="does not exist"):
        pack(tmp_path / "no")
    with pytest.raises(UsageError, match="has no file"):
        pack(tmp_path)
    (tmp_path / os.fsdecode(b"bad\xff.py")).write_text("")
    with pytest.raises(UsageError, match="is not UTF-8"):
        pack(tmp_path)
