"""Iterating over data in jobs that are restarted. The sampler needs PyTorch; the rest does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.elastic.utils.data.cycling_iterator import CyclingIterator

if TYPE_CHECKING:
    from holdfast.elastic.utils.data.elastic_distributed_sampler import ElasticDistributedSampler

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]


def __getattr__(name: str) -> Any:
    if name != "ElasticDistributedSampler":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.elastic.utils.data.elastic_distributed_sampler import ElasticDistributedSampler

    return ElasticDistributedSampler
