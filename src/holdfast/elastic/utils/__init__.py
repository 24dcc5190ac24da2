"""Small tools that launchers use; the names are PyTorch's."""

from __future__ import annotations

from holdfast.elastic.utils.api import get_env_variable_or_raise, get_socket_with_port, macros

__all__ = ["get_env_variable_or_raise", "get_socket_with_port", "macros"]
