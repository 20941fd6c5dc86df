"""Names of the kinds of device in Kubernetes and in Ray.

Data only, without imports: processes that start ranks read it.
"""

from __future__ import annotations

KUBERNETES = {
    "GPU": "nvidia.com/gpu",
    "NPU": "huawei.com/Ascend910",
    "TPU": "google.com/tpu",
    "HPU": "habana.ai/gaudi",
    "Neuron": "aws.amazon.com/neuroncore",
}
"""Kind of device -> the usual extended resource for it."""
RAY = {"GPU": "GPU", "NPU": "NPU", "TPU": "TPU", "HPU": "HPU", "Neuron": "neuron_cores"}
"""Kind of device -> the name of Ray's resource for it."""
