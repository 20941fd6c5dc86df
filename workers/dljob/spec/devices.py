"""Kubernetes' names of the kinds of device. Data only, without imports: processes that start ranks read it."""

from __future__ import annotations

KUBERNETES = {
    "GPU": "nvidia.com/gpu",
    "NPU": "huawei.com/Ascend910",
    "TPU": "google.com/tpu",
    "HPU": "habana.ai/gaudi",
    "Neuron": "aws.amazon.com/neuroncore",
}
"""Kind of device -> the usual extended resource for it."""
