"""All causes of the exam, in the order of its table."""

from __future__ import annotations

import disks
import fresh
import kubernetes_faults
import libraries
import machine
import network
import nothing_wrong
import ray_parts
import user_code

MODULES = (user_code, libraries, machine, disks, network, ray_parts, kubernetes_faults, nothing_wrong, fresh)
CAUSES = tuple(cause for module in MODULES for cause in module.CAUSES)
