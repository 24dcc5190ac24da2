"""What the runtime tells its users, as functions of facts."""

from __future__ import annotations

LINK = "it is a link, not a folder"
NOT_OURS = "it does not belong to this user alone"
FILE_NOT_OURS = "it is no file of this user's alone"


# Disks (`runtime.disk`).


def disk_stalls(place: str, meanwhile: str) -> str:
    return f"the disk of {place} does not answer: {meanwhile}"


def disk_answers(place: str, after_s: float) -> str:
    return f"the disk of {place} answers again, after {after_s:.0f} s"


def waiting_for_disk(place: str, unwritten: int, patience_s: float) -> str:
    """At the end, for this many bytes."""
    ends = f"{patience_s:g} s without an answer, or a signal, ends the wait"
    return f"waiting for the disk of {place}: {_amount(unwritten)} not written yet; {ends}"


def gave_up_disk(place: str, unwritten: int) -> str:
    return f"gave up waiting for the disk of {place}: {_amount(unwritten)} lost there"


def _amount(size: int) -> str:
    return f"{-(-size // 1024)} KiB are"


# Unexpected exceptions (`runtime.failing`).


def own_error(reason: str) -> tuple[str, str]:
    """The mistake and a hint."""
    return (
        f"this node ends because of an error in Holdfast: {reason}",
        "all of its workers are ended; please report what follows",
    )


def another_error(reason: str) -> str:
    """A further one, during the clean-up after the first."""
    return f"then, while cleaning up: {reason}"
