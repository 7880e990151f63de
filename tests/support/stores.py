"""New MLflow stores as copies of one that was made once: MLflow applies every migration of its history to a new one.

Commands in Python processes of their own, and the first test that needs a store, create theirs as users do.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from filelock import FileLock

from gbactl.tracking import mlflow_store

created = mlflow_store._create
template = Path()


def copy_from(path: Path) -> None:
    """Have this process copy the store at `path`, which is created when the first one is needed."""
    global template
    template = path
    mlflow_store._create = copied


def copied(path: Path) -> None:
    """Put a store into place as the original does."""
    with FileLock(f"{template}.lock"):
        if not template.exists():
            created(template)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        shutil.copyfile(template, draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
