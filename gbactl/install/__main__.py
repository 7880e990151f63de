"""Installer of a checkout: `python3.11 -m gbactl.install [--no-horovod]` makes .venv and everything in it.

`make install` calls it. A stamp over pyproject.toml, the kernel's source and this package makes it idempotent: when
nothing has changed it takes 0.1 s. It holds a lock, so that two installers at the same time do the work once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from gbactl.errors import GbactlError
from gbactl.install import InstallError, run, say
from gbactl.install.horovod import locked

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".gbactl-installed"
INPUTS = (
    "pyproject.toml",
    "gbactl/kernels/kernels.cpp",
    "gbactl/install/horovod.py",
    "gbactl/install/__main__.py",
)


def fingerprint(horovod: bool) -> str:
    """Hash everything that the installation depends on, with SHA-256."""
    digest = hashlib.sha256(f"{sys.version_info[:2]} horovod={horovod} {ROOT}".encode())
    for name in INPUTS:
        digest.update(name.encode() + (ROOT / name).read_bytes())
    return digest.hexdigest()


def torch_requirement() -> str:
    """Return pyproject.toml's exact torch requirement, which is installed first and alone.

    An open range would take a CUDA build."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(str(need) for need in project["dependencies"] if str(need).startswith("torch=="))


def install(horovod: bool) -> None:
    """Create .venv and install torch, gbactl with its tools and, if `horovod`, Horovod. Raises InstallError."""
    logs = VENV / "log"
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install"]
    if not PYTHON.exists():
        run("making .venv", [sys.executable, "-m", "venv", str(VENV)], ROOT / "build" / "venv.log")
    command = [*pip, torch_requirement(), "setuptools<81"]
    run("installing torch", command, logs / "torch.log", about="1 minute")
    command = [*pip, "-e", f"{ROOT}[dev]"]
    run("installing gbactl and its libraries", command, logs / "gbactl.log", about="2 to 4 minutes")
    command = [str(PYTHON), "-m", "gbactl.install.horovod"]
    if horovod and subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise InstallError(
            "Horovod could not be installed (the reason stands above); put it right, or type "
            "`make install HOROVOD=no` and use collective=gloo."
        )


def main() -> int:
    """Run the installer; returns the exit code."""
    horovod = "--no-horovod" not in sys.argv[1:]
    wanted = fingerprint(horovod)
    (ROOT / "build").mkdir(exist_ok=True)
    try:
        with locked(ROOT / "build" / "install.lock"):
            if STAMP.exists() and STAMP.read_text() == wanted and PYTHON.exists():
                return 0
            STAMP.unlink(missing_ok=True)
            install(horovod)
            scratch = STAMP.with_suffix(f".{os.getpid()}")
            scratch.write_text(wanted)
            scratch.replace(STAMP)
    except GbactlError as error:
        say(f"error: {error}")
        return error.exit_code
    say("ready: .venv/bin/gbactl doctor")
    return 0


if __name__ == "__main__":
    sys.exit(main())
