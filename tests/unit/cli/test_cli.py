"""The command line: its surface, its exit codes, and what it does not import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gbactl
from gbactl.cli import VERBS, main
from tests.support.commands import run

HELP = """\
Usage: gbactl [OPTIONS] COMMAND [ARGS]...

  Which distributed training mode should this model run in, on this cluster?

  First steps:
    gbactl doctor                               what this machine can do
    gbactl train experiment=smoke mode=gba      a first run, 8 seconds
    gbactl report                               compare what has been run

Options:
  --version   Show the version and exit.
  --debug     Show the traceback of an error.
  -h, --help  Show this message and exit.

Commands:
  train       train a click model on a cluster in one of the modes
  switch      change the mode of a training, by a schedule or while it runs
  top         watch a running job: rates, slow workers; switch its mode
  advise      simulate the modes and say which one to run in
  report      compare runs: means, deviations, paired differences
  replay      execute a run again from its event log, bit for bit
  checkpoint  list, check and export what a run has saved
  calibrate   measure this machine, for a virtual cluster that is like it
  data        prepare and describe data sets
  config      explain a group or a key of the configuration
  doctor      check whether this machine has what a run needs
  ui          open the MLflow UI on the store of the runs
"""


def gbactl_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gbactl", *arguments], capture_output=True, text=True, cwd=cwd, timeout=100
    )


def test_the_surface_of_the_command() -> None:
    done = gbactl_command("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == HELP
    assert gbactl_command("-h").stdout == done.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_needs_nothing_heavy_for_it(verb: str) -> None:
    code = f"""
import sys
sys.argv = ["gbactl", "{verb}", "--help"]
from gbactl.cli import main
try:
    main()
except SystemExit as end:
    print(end.code, *sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith(f"Usage: gbactl {verb}") and max(map(len, done.stdout.splitlines())) <= 80
    exit_code, *modules = done.stderr.split()
    assert exit_code == "0"
    assert not HEAVY & set(modules)


HEAVY = {
    "torch",
    "numpy",
    "mlflow",
    "hydra",
    "omegaconf",
    "sklearn",
    "rich",
    "polars",
    "matplotlib",
    "scipy",
    "horovod",
}


def test_the_root_command_imports_click_and_little_else() -> None:
    code = "import sys, gbactl.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    modules = set(done.stdout.split())
    assert "click" in modules
    assert not HEAVY & modules
    assert {name for name in modules if name.startswith("gbactl.")} == {"gbactl.cli", "gbactl.errors"}


def test_the_version() -> None:
    done = gbactl_command("--version")
    assert (done.returncode, done.stdout) == (0, f"gbactl, version {gbactl.__version__}\n")


def test_composing_imports_no_torch() -> None:
    code = (
        "import sys; from gbactl.launch.hydra_config import compose\ncompose(['experiment=smoke']); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    modules = set(done.stdout.split())
    assert "hydra" in modules and not {"torch", "mlflow", "sklearn", "horovod"} & modules


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Usage: gbactl"),
        (["config", "chekpoint"], 2, "gbactl: There is no key chekpoint. Did you mean checkpoint"),
        (["train", "mode=gbaa"], 2, "Did you mean gba?"),
        (["train", "-m", "seed=1,2", "--cfg", "job"], 2, "gbactl: Only one of"),
        (["train", "--mode", "gba"], 2, "gbactl: Unrecognized arguments: --mode; an override is GROUP=OPTION or KEY="),
        (["train", "--cfg", "jobs"], 2, "gbactl: Argument --cfg/-c: invalid choice: 'jobs' (choose from 'job', 'hy"),
        (["train", "optm.lr=1"], 2, "gbactl: There is no key optm.lr. Did you mean optim.lr"),
        (["nosuch"], 2, "Error: No such command 'nosuch'."),
        (["trian"], 2, "Error: No such command 'trian'. Did you mean train?"),
        (["--nosuch"], 2, "No such option"),
        (["report", "--margin", "abc"], 2, "Invalid value for '--margin': 'abc' is not a valid number."),
        (["report", "--margin", "-1"], 2, "Invalid value for '--margin': -1.0 is not in the range x>0."),
        (["advise", "--margin", "nan"], 2, "Invalid value for '--margin': 'nan' is not a finite number."),
        (["advise", "--minutes", "inf"], 2, "Invalid value for '--minutes': 'inf' is not a finite number."),
        (["data", "describe", "--jsn"], 2, "gbactl: --jsn is no option here; type GROUP=OPTION"),
        (["train", "mode=turbo"], 2, "gbactl: In 'train': Could not find 'mode/turbo' Available options"),
        (["train", "train.global_batch=1001"], 2, "gbactl: train.global_batch=1001 cannot be shared"),
        (["train", "cluster.workers=many"], 2, "gbactl: cluster.workers='many' is not a whole number from 1 to 65536;"),
        (["train", "data=criteo"], 2, "gbactl: data.path is not set; type data.path=FILE"),
        (["train", "data=criteo", "data.path=nowhere.gz"], 1, "nowhere.gz"),
    ],
)
def test_exit_codes_and_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str],
    code: int, message: str,
) -> None:  # fmt: skip
    """In this process: commands of their own are the tests around this one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gbactl", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == code
    assert message in err
    assert "Traceback" not in err
    assert out == ""
    if err.startswith("gbactl:"):
        assert err.count("\n") == 1
    assert not [path for path in tmp_path.glob("runs/*") if path.name != ".hydra"], "no run directory"


def test_debug_shows_the_traceback() -> None:
    done = gbactl_command("--debug", "train", "seed=x")
    assert done.returncode == 1 and "Traceback" in done.stderr and "ConfigError" in done.stderr


def test_cfg_job_prints_the_configuration_and_runs_nothing(tmp_path: Path) -> None:
    done = gbactl_command("train", "mode=gba", "cluster.workers=8", "--cfg", "job", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "name: gba" in done.stdout and "workers: 8" in done.stdout
    own = gbactl_command("train", "--config-dir", ".", "mode=gba", "cluster.workers=8", "--cfg", "job", cwd=tmp_path)
    assert (own.returncode, own.stdout) == (0, done.stdout), "the keys with an effect, not Hydra's raw configuration"
    assert not any(path.name not in ("runs",) for path in tmp_path.iterdir())


def test_info_is_hydras(tmp_path: Path) -> None:
    done = gbactl_command("train", "--info", "defaults", cwd=tmp_path)
    assert done.returncode == 0
    assert "mode" in done.stdout


def test_json_is_not_printed_for_a_failed_run(tmp_path: Path) -> None:
    keys = ("run_dir=/proc/nowhere", "data.days=2", "data.rows_per_day=500")
    done = run("train", *keys, cwd=tmp_path, environment=os.environ)
    assert done.returncode == 2
    assert "The run directory /proc/nowhere cannot be made" in done.stderr
    with pytest.raises(json.JSONDecodeError):
        json.loads(done.stdout)


def test_a_terminal_that_cannot_show_a_character_ends_no_command() -> None:
    code = "from gbactl import cli; cli.cli.main = lambda **_: print('runs/2026\\u2026'); cli.main()"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, b"runs/2026?\n"), done.stderr
