"""A real server to test on, as for the transport, and no descriptor left behind."""

from __future__ import annotations

from ..transport.conftest import certificates, no_descriptor_left, patience_with_the_mute, stage

__all__ = ["certificates", "no_descriptor_left", "patience_with_the_mute", "stage"]
