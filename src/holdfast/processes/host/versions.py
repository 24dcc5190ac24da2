"""Which versions of which packages workers on this machine get, and which arguments: asked after a
failure, in a lane.

Only names of folders are read (`torch-2.13.0.dist-info`), of what Python looks through for a
worker. What lies nearest to the program comes first, since that is what differs most often.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.protocol.bounds import LINE_MOST, clean, cut

KNOWN = frozenset(
    {"accelerate", "apex", "datasets", "deepspeed", "diffusers", "flash_attn", "flax", "holdfast",
     "jax", "jaxlib", "lightning", "megatron_core", "numpy", "nvidia_nccl_cu12", "peft",
     "pytorch_lightning", "tokenizers", "torch", "torchaudio", "torchvision",
     "transformer_engine", "transformers", "triton", "vllm", "xformers"}
)  # fmt: skip
"""Of an installation with hundreds of packages, those in which a difference between machines
matters."""
ARGUMENTS_MOST = 200
SUFFIXES = (".dist-info", ".egg-info")


def of_workers(
    environ: Mapping[str, str], program_folder: str | None, arguments: Sequence[str] = ()
) -> str:
    """`Python 3.11.7, arguments --lr 0.1, torch 2.13.0, …`, bounded in length."""
    near = [program_folder or "", *environ.get("PYTHONPATH", "").split(os.pathsep)]
    found = {"Python": ".".join(map(str, sys.version_info[:3]))}
    if arguments:
        found["arguments"] = cut(clean(" ".join(arguments)).replace(", ", ","), ARGUMENTS_MOST)
    for folder in near:
        found |= {n: v for n, v in _installed(folder) if n not in found}
    for folder in sys.path:
        found |= {n: v for n, v in _installed(folder) if n in KNOWN and n not in found}
    return _listed(f"{name} {version}" for name, version in found.items())


def _installed(folder: str) -> Iterable[tuple[str, str]]:
    try:
        names = sorted(os.listdir(folder)) if folder else []
    except OSError:
        return  # It is in the path, and not there.
    for name in names:
        plain = name.removesuffix(SUFFIXES[0]).removesuffix(SUFFIXES[1])
        package, dash, version = plain.partition("-")
        if plain != name and dash and version.isprintable():
            yield package.lower(), version.partition("-")[0]


def _listed(entries: Iterable[str]) -> str:
    listed = ""
    for entry in entries:
        longer = f"{listed}, {entry}" if listed else entry
        if len(longer) > LINE_MOST:
            break
        listed = longer
    return listed
