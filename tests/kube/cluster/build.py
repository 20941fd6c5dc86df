"""Builds the programs of a Kubernetes cluster from Go modules, and unpacks a container runtime from Debian's packages.

Programs are built once per state of the module files and sources (`cache.kube`). The manifests of a program come from
the same module version, so that the two cannot drift apart. Two builds at once would need the linker's 2.4 GiB each,
so a lock makes the second wait; it then finds the programs built.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import cache

RAY_OPERATOR = "github.com/ray-project/kuberay/ray-operator"
KWOK = "sigs.k8s.io/kwok"
# Debian packages that a node needs beside Kubernetes, with the libraries that a minimal Debian lacks.
DEBIAN = (
    *("containerd", "runc", "containernetworking-plugins", "nftables"),
    *("libnftables1", "libnftnl11", "libmnl0", "libxtables12", "libjansson4", "libedit2", "libseccomp2"),
)


MEMORY = {"GOGC": "400", "GOMEMLIMIT": "3GiB"}
"""Environment of compilers and linkers: 15 % less processor time, since garbage is collected rarely up to 3 GiB."""


@dataclass(frozen=True)
class Program:
    """A program to build from Go modules.

    Args:
        name: its file in `bin/`.
        package: what `go build` is given.
        folder: of its go.mod, in `go/`.
        manifests: (module, folder in it): kept beside the program as a folder of the program's name.
    """

    name: str
    package: str
    folder: str = "."
    manifests: tuple[str, str] | None = None


PROGRAMS = (
    Program("kube", "./kube"),
    Program("kuberay", RAY_OPERATOR, "kuberay", (RAY_OPERATOR, "config")),
    Program("helm", "helm.sh/helm/v4/cmd/helm"),
    Program("coredns", "./coredns"),
    Program("kwok", f"{KWOK}/cmd/kwok", ".", (KWOK, "kustomize/stage")),
    Program("pause", "./pause"),
)
PLANE = ("kube", "kuberay", "helm", "kwok")  # Programs of a control plane; a node needs all.


def go(folder: Path, *args: str) -> str:
    """Run the go command in a module's folder; returns its output.

    Raises:
        RuntimeError: it failed; with the end of its output.
    """
    env = {**MEMORY, **os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(["go", *args], cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go {' '.join(args)}: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def flags(program: Program) -> list[str]:
    """Return build flags: no local paths, no debug tables, and Kubernetes' version, which its components compare.

    Compilers need not write what the linker drops: 10 % less processor time.
    """
    link = "-s -w"
    if program.name == "kube":
        version = go(cache.GO, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
        major, minor, _ = version.removeprefix("v").split(".", 2)
        at = "k8s.io/component-base/version"
        link += f" -X {at}.gitVersion={version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    return ["-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false", "-ldflags", link]


def build(program: Program) -> None:
    """Build one program atomically."""
    target, folder = cache.kube(), cache.GO / program.folder
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=target) as work:
        out = Path(work) / program.name
        go(folder, "build", *flags(program), "-o", str(out), program.package)
        if program.manifests:
            module, inside = program.manifests
            source = Path(go(folder, "list", "-m", "-f", "{{.Dir}}", module)) / inside
            shutil.copytree(source, Path(work) / "manifests", copy_function=shutil.copyfile)
            for made in Path(work, "manifests").rglob("*"):
                made.chmod(0o755 if made.is_dir() else 0o644)  # Copies from the module cache are read-only.
            Path(work, "manifests").chmod(0o755)
            shutil.rmtree(target / program.name, ignore_errors=True)
            Path(work, "manifests").rename(target / program.name)
        out.rename(target / "bin" / program.name)
    if program.name == "kube":
        (target / "bin" / "kubectl").unlink(missing_ok=True)
        (target / "bin" / "kubectl").symlink_to("kube")
    print(f"built {program.name} in {time.monotonic() - begin:.0f} s", flush=True)


def download(programs: Sequence[Program]) -> None:
    """Download the modules of programs.

    Raises:
        MissingError: Go or the modules are not available.
    """
    if shutil.which("go") is None:
        raise cache.MissingError(
            "Go is not on the PATH, and the test cluster is built from Go modules: install the version that"
            " tests/kube/cluster/go/go.mod names"
        )
    for folder in sorted({p.folder for p in programs}):
        try:
            go(cache.GO / folder, "mod", "download")
        except RuntimeError as e:
            raise cache.MissingError(f"the Go modules of the test cluster cannot be fetched: {e}") from e


def runtime() -> Path:
    """Return the root folder of the container runtime, unpacked from Debian's packages and not installed.

    Raises:
        MissingError: this machine is no Debian, or its packages cannot be downloaded.
    """
    target = cache.kube() / "root"
    if not target.exists():
        with lock():
            if not target.exists():
                unpack(target)
    return target


def unpack(target: Path) -> None:
    """Download Debian's packages and unpack them into a folder atomically."""
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise cache.MissingError(
            "the real node's containerd and runc are unpacked from Debian's packages: it takes apt-get and dpkg"
        )
    with tempfile.TemporaryDirectory(dir=cache.kube()) as work:
        fetch = ["apt-get", "-o", "APT::Sandbox::User=root", "download", *DEBIAN]
        done = subprocess.run(fetch, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise cache.MissingError(
                f"Debian's packages of the container runtime cannot be fetched: {done.stderr.strip()[-1000:]}"
            )
        root = Path(work) / "root"
        for package in sorted(Path(work).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
        root.chmod(0o755)
        root.rename(target)


@contextlib.contextmanager
def lock() -> Generator[None]:
    """Hold the lock that allows one build at a time for this user."""
    (cache.kube() / "bin").mkdir(parents=True, exist_ok=True)
    with Path(cache.home() / "kube" / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the test cluster", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure(names: Sequence[str] = ()) -> None:
    """Build the missing ones of the named programs, or of all programs.

    Raises:
        MissingError: this machine cannot build them; the message says what it lacks.
    """
    wanted = [p for p in PROGRAMS if not names or p.name in names]
    with lock() if absent(wanted) else contextlib.nullcontext():
        todo = absent(wanted)  # Checked again under the lock: another build may have made them.
        if todo:
            download(todo)
        for program in todo:
            build(program)
    link()


def absent(programs: Sequence[Program]) -> list[Program]:
    """Return the programs that are not built."""
    return [p for p in programs if not (cache.kube() / "bin" / p.name).exists()]


def link() -> None:
    """Link kubectl and helm into the folder of the project's Python."""
    for name, program in (("kubectl", "kube"), ("helm", "helm")):
        at, to = cache.ROOT / ".venv" / "bin" / name, cache.kube() / "bin" / program
        if at.parent.exists() and to.exists() and not (at.is_symlink() and at.readlink() == to):
            at.unlink(missing_ok=True)
            at.symlink_to(to)
