"""`make dist`: the sdist, the wheel and their bills of materials (SBOM), in `dist/`.

Rules
1. Reproducible: the same commit gives the same bytes. Times are those of the commit, or of
   SOURCE_DATE_EPOCH.
2. Bills of materials are CycloneDX. cyclonedx-py makes `…-python.cdx.json` from an environment with
   the wheel and its dependencies, and npm makes `…-page.cdx.json` from the lock file of the
   dashboard's page.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DIST = ROOT / "dist"


def commit_time() -> str:
    """When the commit was made, in seconds since 1970."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


def build(root: Path, into: Path, epoch: str, *targets: str) -> list[Path]:
    """Build the targets (`wheel`, `sdist`) of a checkout; returns the files."""
    for target in targets:
        command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
        environ = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
        subprocess.run(command, cwd=root, env=environ, check=True, capture_output=True)
    return sorted([*into.glob("*.tar.gz"), *into.glob("*.whl")])


def python_sbom(wheel: Path, output: Path) -> None:
    """List what an environment has in which only the wheel was installed."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=False)
        python = Path(folder) / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
        subprocess.run([*pip, "--python", python, "install", wheel], check=True)
        command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        command += ["--pyproject", str(ROOT / "pyproject.toml"), "--output-file", str(output)]
        subprocess.run([*command, python], check=True)


def page_sbom(output: Path) -> None:
    """List what the dashboard's page was built from."""
    command = ["npm", "sbom", "--sbom-format=cyclonedx", "--package-lock-only", "--omit=dev"]
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page"
        page.mkdir()
        for name in ("package.json", "package-lock.json"):
            described = json.loads((ROOT / "frontend" / name).read_text(encoding="utf-8"))
            # The page has no version of its own, and npm demands one.
            for each in (described, described.get("packages", {}).get("", {})):
                each["version"] = "0.0.0"
            (page / name).write_text(json.dumps(described), encoding="utf-8")
        made = subprocess.run(command, cwd=page, check=True, capture_output=True).stdout
    bill = json.loads(made)
    # These two differ each time, and CycloneDX has both as optional.
    del bill["serialNumber"], bill["metadata"]["timestamp"]
    output.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or commit_time()
    (wheel,) = (
        path for path in build(ROOT, DIST, epoch, "sdist", "wheel") if path.suffix == ".whl"
    )
    name = "-".join(wheel.name.split("-")[:2])
    python_sbom(wheel, DIST / f"{name}-python.cdx.json")
    if shutil.which("npm"):
        page_sbom(DIST / f"{name}-page.cdx.json")
    else:
        print("hint: npm makes the bill of materials of the dashboard's page; it is not installed")
    if ".example/" in (ROOT / "pyproject.toml").read_text(encoding="utf-8"):
        print("warning: the links in pyproject.toml ([project.urls]) lead to a placeholder")
    for path in sorted(DIST.iterdir()):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
