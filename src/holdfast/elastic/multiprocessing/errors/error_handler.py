"""`ErrorHandler`: what `record` does with an error, in steps that a subclass may replace.

The steps themselves are those of `holdfast.worker.record` and `holdfast.worker.error_file`:
nothing that is done here raises because a file cannot be written, since its caller is
failing already.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from holdfast.worker import error_file
from holdfast.worker.record import document_for, show_stacks_on_stderr

__all__ = ["ErrorHandler"]

logger = logging.getLogger(__name__)


class ErrorHandler:
    """Leaves errors in the file that `TORCHELASTIC_ERROR_FILE` names.

    Subclasses override `initialize`, `record_exception` and `record_success`, `dump_error_file`
    where the error of a child is to go elsewhere too, and `maybe_enrich_signal_failure_message`
    where more is known of a signal than its name.
    """

    _fn_name: str | None = None
    """The qualified name of the function whose errors are recorded, for subclasses."""

    def _get_error_file_path(self) -> str | None:
        """The path of this process's error file; None where none is wanted."""
        return error_file.path_from_environment(os.environ)

    def set_entrypoint_fn_name(self, fn_name: str | None) -> None:
        """Called before `initialize`, with the name of the function; None where it has none."""
        self._fn_name = fn_name

    def initialize(self) -> None:
        """Called before the function runs whose errors are recorded.

        Enables `faulthandler`, on stderr, even where it was enabled before: a program that is
        ported finds its stacks where it did.
        """
        show_stacks_on_stderr()

    def record_exception(self, e: BaseException) -> None:
        """Leave an exception that is being raised now; without a file for it, do nothing."""
        path = self._get_error_file_path()
        if path:
            error_file.save(path, document_for(e))

    def record_success(self) -> None:
        """Called once the function has returned; does nothing."""

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """The message about a process that a signal ended, with what else is known of it.

        `error_file` is where the process would have left its error, or `<N/A>`.
        """
        return message

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Note in a child's error how its process ended, where its shape has room for it."""
        if isinstance(rootcause_error.get("message"), dict):
            rootcause_error["message"]["errorCode"] = error_code
            return
        logger.warning(
            "the error in %s has an unknown form, and is passed on without the exit code %s",
            rootcause_error_file,
            error_code,
        )

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Pass on what a child left, as our own error.

        Raises `OSError` or `ValueError` for a child's file that cannot be read; `record` asks
        only for files that can.
        """
        with open(rootcause_error_file, encoding="utf-8") as file:
            document = json.load(file)
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, document, error_code)
        path = self._get_error_file_path()
        if not path:
            logger.error(
                "the error in %s is not passed on: no error file was asked for",
                rootcause_error_file,
            )
            return
        if error_file.is_present(path):
            # A child that was started with our environment may have written to our file.
            logger.warning("%s is replaced; it held %s", path, error_file.read(path))
        error_file.save(path, document)
