"""torchvision, even with a torch that was built for CPUs: import `models` and the like from here.

PyPI's torchvision is built for CUDA. With a CPU-only torch, its operators can't be loaded, and its import
fails because it registers two of them with the compiler without checking whether they exist.
"""

from torch import library

try:
    from torchvision import models
except RuntimeError:
    _operators = library.Library("torchvision", "FRAGMENT")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from torchvision import models

__all__ = ["models"]
