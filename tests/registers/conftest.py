"""No descriptor is left behind by any test of a register; certificates for those that need some."""

from __future__ import annotations

from ..transport.conftest import certificates, no_descriptor_left

__all__ = ["certificates", "no_descriptor_left"]
