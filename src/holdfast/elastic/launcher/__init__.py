"""Launching an agent from a program: `elastic_launch(LaunchConfig(...), function)(*args)`."""

from holdfast.elastic.launcher.api import LaunchConfig, elastic_launch, launch_agent

__all__ = ["LaunchConfig", "elastic_launch", "launch_agent"]
