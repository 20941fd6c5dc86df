"""Command line of the test cluster: `make kube-build`, `kube-up` and `kube-down` run it, PYTHONPATH=tests/kube."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cluster import build, cache, images, kwok, node, torch_volume, up
from cluster.handle import Cluster, KubectlError


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build what is not built yet")
    for name, text in {
        "up": "boot a cluster",
        "down": "end a cluster",
        "load": "import images into a running node",
    }.items():
        command = commands.add_parser(name, help=text)
        command.add_argument("--run", type=Path, help="the cluster's folder; default .kube/plane, or .kube/node")
        if name == "load":
            command.add_argument("archives", nargs="+", type=Path)
        if name == "up":
            command.add_argument("--node", action="store_true", help="with a real node")
            command.add_argument("--fake", type=int, default=0, metavar="N", help="with N fake nodes (no real one)")
            command.add_argument("--torch", default="", metavar="NAMESPACE", help="give a namespace the claim torch")
    return parser.parse_args()


def boot(args: argparse.Namespace) -> Cluster:
    """Boot the cluster that `up` names."""
    run = (args.run or up.RUNS / ("node" if args.node else "plane")).absolute()
    build.ensure(() if args.node else build.PLANE)
    cluster = up.real(run) if args.node else up.plane(run)
    if args.fake:
        kwok.add(cluster, run, args.fake)
    if args.torch:
        torch_volume.volume(cluster, args.torch)
    return cluster


def end(run: Path | None) -> None:
    """End the cluster of a folder, or those that `up` creates when none is named; print what was ended."""
    for folder in [run.absolute()] if run else [up.RUNS / "node", up.RUNS / "plane"]:
        if ended := up.down(folder):
            print(f"ended {', '.join(ended)} of {folder}")


def everything() -> None:
    """Build the programs of a control plane, and those of a node where this machine can run one."""
    build.ensure()
    images.ensure()
    try:
        build.runtime()
    except cache.MissingError as e:
        print(f"no real node here: {e}")
    print(cache.kube())


def main() -> int:
    """Run the command."""
    args = arguments()
    try:
        if args.command == "build":
            everything()
        elif args.command == "up":
            print(f"KUBECONFIG={boot(args).kubeconfig}")
        elif args.command == "down":
            end(args.run)
        else:
            node.load((args.run or up.RUNS / "node").absolute(), args.archives)
    except (cache.MissingError, KubectlError, RuntimeError) as e:
        print(f"cluster: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
