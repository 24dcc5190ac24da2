"""A process that hosts a TCPStore by its register, until its standard input ends."""

from __future__ import annotations

import sys

from holdfast.registers.register import RegisterSettings
from holdfast.registers.torch_store import TorchStoreRegister

if __name__ == "__main__":
    options = {"store_type": "tcp", "is_host": "true"}
    register = TorchStoreRegister(RegisterSettings("c10d", sys.argv[1], "hosting", options))
    assert register.get_state() is None
    print("serving", flush=True)
    sys.stdin.read()
    register.close()
