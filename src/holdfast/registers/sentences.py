"""What the record of a job tells its users, as functions of facts."""

from __future__ import annotations


def not_kept(folder: object, reason: str | None) -> str:
    return f"the coordinator's record cannot be kept in {folder}: {reason}"


def not_believed(path: object, reason: str | None) -> str:
    return f"{path} is not believed: {reason}"


def foreign(path: object) -> str:
    return f"{path} contains data that Holdfast did not write"
