"""The quality gate: DeepFM on Frappe, 4 workers, 2 servers, G 4096."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PUBLISHED_GATE = 0.983


@pytest.mark.slow
@pytest.mark.beside
@pytest.mark.timeout(1200)
@pytest.mark.skipif("GBACTL_DATA" not in os.environ, reason="GBACTL_DATA does not name a folder with frappe/")
@pytest.mark.parametrize("mode", ["sync", "gba"])
def test_deepfm_reaches_the_published_auc(tmp_path: Path, mode: str) -> None:
    """The settings are conf/experiment/frappe.yaml, the same for both modes."""
    gbactl = Path(sys.executable).parent / "gbactl"
    done = subprocess.run(
        [str(gbactl), "train", "experiment=frappe", f"mode={mode}", "seed=0", "tracking.enabled=false", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["auc"] >= PUBLISHED_GATE
    samples = result["samples"]
    assert samples["read"] == samples["trained"] + samples["decayed"] + samples["lost"]
