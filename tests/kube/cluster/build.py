"""Builds the programs of a Kubernetes cluster from Go modules, and unpacks a container runtime from Debian's packages.

A program is built once for a state of the module files and sources (`cache.kube`); the manifests that belong to a
program come out of the same module version, so the two cannot drift apart. Two builds at once would each want the
linker's 2.4 GiB, so one lock holds the second back, and it then finds the programs there.
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
# What a node needs beside Kubernetes: the packages and those of their libraries that a small Debian does not have.
DEBIAN = (
    *("containerd", "runc", "containernetworking-plugins", "nftables"),
    *("libnftables1", "libnftnl11", "libmnl0", "libxtables12", "libjansson4", "libedit2", "libseccomp2"),
)


@dataclass(frozen=True)
class Program:
    """A program to build.

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
PLANE = ("kube", "kuberay", "helm", "kwok")  # what a control plane takes; a node takes all


def go(folder: Path, *args: str) -> str:
    """What the go command prints, run in a module's folder.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    env = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(["go", *args], cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"go {' '.join(args)}: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def flags(program: Program) -> list[str]:
    """No paths of this machine, no debugging tables; Kubernetes is told its version, as its components compare it."""
    link = "-s -w"
    if program.name == "kube":
        version = go(cache.GO, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
        major, minor, _ = version.removeprefix("v").split(".", 2)
        at = "k8s.io/component-base/version"
        link += f" -X {at}.gitVersion={version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}"
    return ["-trimpath", "-buildvcs=false", "-ldflags", link]


def build(program: Program) -> None:
    """Build one program, whole or not at all."""
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
                made.chmod(0o755 if made.is_dir() else 0o644)  # the module cache is read-only
            Path(work, "manifests").chmod(0o755)
            shutil.rmtree(target / program.name, ignore_errors=True)
            Path(work, "manifests").rename(target / program.name)
        out.rename(target / "bin" / program.name)
    if program.name == "kube":
        (target / "bin" / "kubectl").unlink(missing_ok=True)
        (target / "bin" / "kubectl").symlink_to("kube")
    print(f"built {program.name} in {time.monotonic() - begin:.0f} s", flush=True)


def download(programs: Sequence[Program]) -> None:
    """Fetch the modules of programs.

    Raises:
        MissingError: no Go, or no modules.
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
    """The container runtime out of Debian's packages, unpacked, not installed; its root folder.

    Raises:
        MissingError: this is no Debian, or its packages cannot be fetched.
    """
    target = cache.kube() / "root"
    if not target.exists():
        with lock():
            if not target.exists():
                unpack(target)
    return target


def unpack(target: Path) -> None:
    """Fetch Debian's packages, and unpack them into a folder, whole or not at all."""
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
    """One build at a time on this machine, for this user."""
    (cache.kube() / "bin").mkdir(parents=True, exist_ok=True)
    with Path(cache.home() / "kube" / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another build of the test cluster", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def ensure(names: Sequence[str] = ()) -> None:
    """Build what is not there yet of the programs named, or of all.

    Raises:
        MissingError: this machine cannot; the message says what it would take.
    """
    wanted = [p for p in PROGRAMS if not names or p.name in names]
    with lock() if absent(wanted) else contextlib.nullcontext():
        todo = absent(wanted)  # looked at again: another build may have made them
        if todo:
            download(todo)
        for program in todo:
            build(program)
    link()


def absent(programs: Sequence[Program]) -> list[Program]:
    """The programs that are not built."""
    return [p for p in programs if not (cache.kube() / "bin" / p.name).exists()]


def link() -> None:
    """Put kubectl and helm beside the project's Python, as links."""
    for name, program in (("kubectl", "kube"), ("helm", "helm")):
        at, to = cache.ROOT / ".venv" / "bin" / name, cache.kube() / "bin" / program
        if at.parent.exists() and to.exists() and not (at.is_symlink() and at.readlink() == to):
            at.unlink(missing_ok=True)
            at.symlink_to(to)
