"""Setters of a role's scalar options. Made by `python -m dljob.spec.generate`; change the model, not this file."""

from __future__ import annotations

from typing import Literal, Self

from dljob.api.role import RoleSetters


class RoleOptionSetters(RoleSetters):
    """All setters of a role under construction."""

    def python(self, interpreter: str) -> Self:
        """Set `python` of the role.

        The interpreter of the ranks: an absolute path, or a name that the node finds on its PATH. A module or command
        takes any Python from 3.11 to 3.13 and needs neither Ray nor dljob in it; its folder is first on PATH. A class,
        or reserve: Quota, takes one of the cluster's minor version with the cluster's Ray. One in which dljob of
        another minor version is installed is refused. Left out: that of the job.
        """
        return self._set("python", interpreter)

    def visibility(self, which: Literal["Isolated", "Shared"]) -> Self:
        """Set `accelerator.visibility` of the role.

        Isolated: a rank sees only its own devices. Shared: a rank sees the devices of all ranks of its role on its
        host, and finds its own at LOCAL_RANK (or `device_index`); for GPU, NPU and HPU. Left out: Shared for Elastic on
        GPU and NPU, else Isolated.
        """
        return self._set("visibility", which)

    def numa_binding(self, near: Literal["Node", "Socket", "Exclusive", "CoreComplex"]) -> Self:
        """Set `accelerator.numaBinding` of the role.

        Binds each rank to cores near its first device, as torchrun's --numa-binding does. Node: all cores of the NUMA
        node. Socket: all cores of the socket. Exclusive: a share of the node's cores of its own. CoreComplex: the cores
        of one cache. Needs torch 2.9 or newer; for GPU, NPU and HPU. Left out: no binding.
        """
        return self._set("numa_binding", near)

    def device_memory_limit(self, to: Literal["Share", "None"]) -> Self:
        """Set `accelerator.memoryLimit` of the role.

        Share: torch holds a rank with a count below one to that share of its GPU's memory, by
        `torch.cuda.set_per_process_memory_fraction`; more is CUDA out of memory in that rank alone. For GPU, and
        entrypoints of a class or module. None: a rank may take all memory that is free. Left out: Share.
        """
        return self._set("device_memory_limit", to)

    def nice(self, value: int) -> Self:
        """Set `nice` of the role.

        Added to the niceness of the ranks and of all that they start, which Ray's workers have from
        RAY_worker_niceness, 15 by default; the sum is 19 at most. Above 0: other processes get the CPU first. Below 0:
        these ranks do, which needs CAP_SYS_NICE or RLIMIT_NICE on their node; without it the rank fails and names what
        is missing.
        """
        return self._set("nice", value)

    def node_group(self, name: str) -> Self:
        """Set `nodeGroup` of the role.

        The node group whose machines run the ranks; left out: any that fits.
        """
        return self._set("node_group", name)

    def service(self, enabled: bool = True) -> Self:  # noqa: FBT001, FBT002 - a switch, as the field is
        """Set `service` of the role.

        On Kubernetes, a Service `<job>-<role>` that leads clients outside the job to the ranks that are ready. Its port
        is the number in `ports`; for port 0, 80 and so on in their order. A laptop ignores it.
        """
        return self._set("service", enabled)
