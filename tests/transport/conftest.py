"""A stage for every test that wants one, and no descriptor left behind by any."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.transport import listener
from holdfast.transport.auth import TlsFiles

from .stage import DEADLINE_S, Stage


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    deadline = time.monotonic() + DEADLINE_S
    while len(os.listdir("/proc/self/fd")) > before:
        assert time.monotonic() < deadline, "descriptors are left open"
        gc.collect()  # One held by a dead cycle is not a leak.
        time.sleep(0.01)  # Nor one of a thread that looks up a name, and comes to its end.


@pytest.fixture(autouse=True)
def patience_with_the_mute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most agents of these tests never greet, and a busy machine takes its time with them."""
    monkeypatch.setattr(listener, "GREETING_TIMEOUT_S", 10 * DEADLINE_S)


@pytest.fixture
def stage(no_descriptor_left: None) -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


class Certificates:
    """Certificates of two authorities: the job's own, and one that nobody should trust."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for authority in ("ours", "theirs"):
            self._run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                      "-nodes", "-keyout", f"{authority}.key", "-out", f"{authority}.pem",
                      "-subj", f"/CN={authority}", "-days", "2")  # fmt: skip
            self._sign(authority)

    def _sign(self, authority: str) -> None:
        """A certificate for loopback, signed by the authority."""
        name = f"{authority}-node"
        self._run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                  "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=node")  # fmt: skip
        (self._folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{authority}.pem", "-CAkey",
                  f"{authority}.key", "-CAcreateserial", "-out", f"{name}.pem", "-days", "2",
                  "-extfile", "names")  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)

    def files(self, signed_by: str = "ours", trusting: str = "ours") -> TlsFiles:
        return TlsFiles(
            certificate=str(self._folder / f"{signed_by}-node.pem"),
            key=str(self._folder / f"{signed_by}-node.key"),
            authority=str(self._folder / f"{trusting}.pem"),
        )

    def only_trusting(self, authority: str = "ours") -> TlsFiles:
        """Without a certificate of its own."""
        path = str(self._folder / f"{authority}.pem")
        return TlsFiles(authority=path)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make certificates")
    return Certificates(tmp_path_factory.mktemp("certificates"))
