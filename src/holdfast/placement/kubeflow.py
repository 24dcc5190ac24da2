"""Kubeflow on Kubernetes: Trainer v2, and PyTorchJob before it.

Both say what torchrun reads, in `PET_` variables, and Holdfast reads these as options. So there is
nothing to fill in: this is how the line at the start and `holdfast where` know who said so.
"""

from __future__ import annotations

from holdfast.placement.model import Circumstances, Placement

NAME = "Kubeflow"


def detect(circumstances: Circumstances) -> Placement | None:
    """The controller that set the `PET_` variables; None outside of a cluster: set by hand."""
    if not circumstances.text("KUBERNETES_SERVICE_HOST"):
        return None
    elastic = circumstances.text("PET_RDZV_ENDPOINT")
    scheduler = "Kubeflow PyTorchJob" if elastic else "Kubeflow Trainer"
    pod = circumstances.text("HOSTNAME")
    return Placement(scheduler=scheduler, where=f"{scheduler}, pod {pod}" if pod else scheduler)
