"""Holdfast: the launcher that holds distributed jobs together."""

__version__ = "0.1.0"
