"""Exact quantities in the notation of Kubernetes and Ray: text in, ten-thousandths (Ray's own grain) out, no floats.

cpu and custom resources: "2", "0.5", "500m". Memory: "8Gi", "512Mi", "2G", or bytes. Devices: "8", or a share "0.4".
Each parser raises ValueError with a message for users.
"""

from __future__ import annotations

import re
from fractions import Fraction

GRAIN = 10_000
"""Parts of one: 1 CPU = 10_000, 1 byte = 10_000, "0.4" of a device = 4_000."""

# Three digits after the dot: Kubernetes counts CPUs in thousandths.
CPU_PATTERN = r"^([0-9]{1,9}m|[0-9]{1,6}(\.[0-9]{1,3})?)$"
# Four digits after the dot: the grain of Ray.
CUSTOM_PATTERN = r"^([0-9]{1,9}m|[0-9]{1,9}(\.[0-9]{1,4})?)$"
MEMORY_PATTERN = r"^[0-9]{1,19}(\.[0-9]{1,9})?(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
# Only whole numbers from one on: Ray takes no fractions there.
DEVICES_PATTERN = r"^(0\.[0-9]{1,4}|[0-9]+)$"

# Not 1, with which the memory would not grow.
FACTOR_PATTERN = r"^(1\.([1-9][0-9]?|0[1-9])|[2-9](\.[0-9]{1,2})?)$"

_UNITS = {
    "": 1,
    **{letter: 1000**power for power, letter in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{f"{letter}i": 1024**power for power, letter in enumerate(("K", "M", "G", "T", "P"), start=1)},
}
_MAX_BYTES = 2**63
"""Kubernetes counts bytes as int64."""


def parse_cpu(text: str) -> int:
    """Parse CPUs to ten-thousandths: "2" is 20_000, "500m" and "0.5" are 5_000. Raises ValueError."""
    if not re.fullmatch(CPU_PATTERN, text):
        raise ValueError(f'"{text}" is not an amount of CPU: write "2", "0.5" or "500m"')
    return _thousandths(text)


def parse_custom(text: str) -> int:
    """Parse a custom resource to ten-thousandths: "1", "0.5" or "500m". Raises ValueError."""
    if not re.fullmatch(CUSTOM_PATTERN, text):
        raise ValueError(f'"{text}" is not an amount of a resource: write "1", "0.5" or "500m"')
    return _thousandths(text)


def parse_memory(text: str) -> int:
    """Parse memory to bytes x 10_000; a fraction such as "1.1Gi" is rounded up to a whole byte, as by Kubernetes."""
    if not re.fullmatch(MEMORY_PATTERN, text):
        # In Kubernetes `m` means thousandths of a byte, and is mostly a slip for Mi.
        milli = re.fullmatch(r"([0-9]+)m", text)
        suggestion = f'"{milli[1]}Mi"' if milli else '"8Gi" (or Ki, Mi, Ti, Pi, k, M, G, T, P, or plain bytes)'
        raise ValueError(f'"{text}" is not an amount of memory: write {suggestion}')
    number = text.rstrip("kMGTPKi")
    exact = Fraction(number) * _UNITS[text[len(number) :]]
    whole_bytes = -(-exact.numerator // exact.denominator)
    if whole_bytes >= _MAX_BYTES:
        raise ValueError(f'"{text}" is more memory than 64 bits can hold')
    return whole_bytes * GRAIN


def parse_devices(text: str) -> int:
    """Parse the devices of one rank to ten-thousandths: a whole number above 0, or a share of at most four digits."""
    if not re.fullmatch(DEVICES_PATTERN, text):
        raise ValueError(
            f'"{text}" is not a number of devices: write a whole number, or a share below one such as "0.4"'
        )
    # Exact: the pattern allows at most four digits.
    amount = int(Fraction(text) * GRAIN)
    if amount == 0:
        raise ValueError("count must be above 0: leave accelerator out for a role without devices")
    return amount


def parse_factor(text: str) -> int:
    """Parse a factor above 1 and below 10 to ten-thousandths: "1.5" is 15_000."""
    return int(Fraction(text) * GRAIN)


def show(amount: int) -> str:
    """Format ten-thousandths for people: 4_000 is "0.4", 20_000 is "2"."""
    integral, rest = divmod(amount, GRAIN)
    return f"{integral}.{rest:04d}".rstrip("0") if rest else str(integral)


def show_memory(amount: int) -> str:
    """Format bytes x 10_000 in the largest exact binary unit: "8Gi", "1536Mi", "1000"."""
    size = amount // GRAIN
    # Only units without a remainder: the shown text must read back as the same amount.
    for power, letter in ((5, "P"), (4, "T"), (3, "G"), (2, "M"), (1, "K")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{letter}i"
    return str(size)


def _thousandths(text: str) -> int:
    exact = Fraction(text[:-1]) / 1000 if text.endswith("m") else Fraction(text)
    return int(exact * GRAIN)
