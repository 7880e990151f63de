"""Cells, their finished runs, and sweeps that go on: what was interrupted, what is asked for again, what tunes."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from gbactl.atomic_files import CONFIG, write_result
from gbactl.config import RunConfig, from_dict
from gbactl.data.cache import data_fingerprint
from gbactl.errors import ConfigError, DivergedError, GbactlError, Stopped, UsageError
from gbactl.install import code_version
from gbactl.launch import finished_sweep_cells
from gbactl.launch import run_dir as run_dirs
from gbactl.launch.hydra_config import compose, run_hydra
from gbactl.launch.sweep_parent_run import best_trials, with_tuning
from gbactl.tracking.run_description import CommandLine

DATA = "d" * 32


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(**changes: Any) -> RunConfig:
    return from_dict({"tracking": {"enabled": False}, "data": {"name": "synthetic"}, **changes})


def finish(cfg: RunConfig, auc: float = 0.7, status: str = "FINISHED") -> dict[str, Any]:
    """What a run leaves, without its training."""
    path = run_dirs.create(cfg)
    cell = finished_sweep_cells.cell_of(cfg, data_fingerprint(cfg.data))
    result = {"status": status, "cell": cell, "run_dir": str(path), "auc": auc, "eps": 1e4, "run_id": None}
    result |= {"mode": cfg.mode.name, "tracked_in": finished_sweep_cells.tracked_in(cfg.tracking)}
    write_result(path, result)
    if status == "FINISHED":
        finished_sweep_cells.keep(cell, path)
    return result


def test_a_cell_is_configuration_data_and_code(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = finished_sweep_cells.cell_of(config(), DATA)
    assert cell == finished_sweep_cells.cell_of(
        config(run_dir="a", tracking={"experiment": "b"}, data={"cache": "c"}), DATA
    )
    assert cell != finished_sweep_cells.cell_of(config(seed=1), DATA)
    assert cell != finished_sweep_cells.cell_of(config(), "e" * 32)
    resumed = config(resume="cut-000001")
    (here / "cut-000001").mkdir()
    (here / "cut-000001/manifest.json").write_text("a")
    before = finished_sweep_cells.cell_of(resumed, DATA)
    (here / "cut-000001/manifest.json").write_text("b")
    assert len({cell, before, finished_sweep_cells.cell_of(resumed, DATA)}) == 3
    monkeypatch.setattr(finished_sweep_cells, "running_code", lambda: "other")
    assert cell != finished_sweep_cells.cell_of(config(), DATA)


def test_the_code_version_sees_what_numbers_depend_on(here: Path) -> None:
    (here / "policies").mkdir()
    (here / "report").mkdir()
    (here / "policies" / "gba.py").write_text("a = 1\n")
    before = code_version(here)
    (here / "report" / "text_formats.py").write_text("b = 1\n")
    assert code_version(here) == before
    (here / "policies" / "gba.py").write_text("a = 2\n")
    assert code_version(here) != before


def test_what_has_finished_is_found_as_long_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert finished_sweep_cells.find(config()) is None
    found = finish(config())
    assert finished_sweep_cells.find(config()) == found
    assert finished_sweep_cells.find(config(run_dir="mine")) is None, "what is asked for in a directory has to be there"
    assert finished_sweep_cells.find(config(tracking={})) is None, "it is not in the store"
    finish(config(run_dir="mine", seed=1))
    assert finished_sweep_cells.find(config(run_dir="mine", seed=1)) and finished_sweep_cells.find(config(seed=1))
    assert finished_sweep_cells.find(config(run_dir="mine", seed=2)) is None
    (Path(found["run_dir"]) / "result.json").unlink()
    assert finished_sweep_cells.find(config()) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///one.db")
    tracked = finish(config(seed=3, tracking={"experiment": "a"}))
    assert finished_sweep_cells.find(config(seed=3)) == tracked
    assert finished_sweep_cells.find(config(seed=3, tracking={"experiment": "a", "run_name": "b"})) == tracked
    assert finished_sweep_cells.find(config(seed=3, tracking={"experiment": "c"})) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///two.db")
    assert finished_sweep_cells.find(config(seed=3, tracking={"experiment": "a"})) is None, "it is in another store"
    same = {"experiment": "a", "uri": "sqlite:///one.db"}
    assert finished_sweep_cells.find(config(seed=3, tracking=same)) == tracked


def test_a_run_that_is_begun_anew_leaves_the_former_one_beside_it(here: Path) -> None:
    cfg = config(run_dir="mine")
    finished_sweep_cells.set_aside(cfg)
    path = run_dirs.create(cfg)
    with run_dirs.lock(path), pytest.raises(UsageError, match="still going on"):
        finished_sweep_cells.set_aside(cfg)
    finished_sweep_cells.set_aside(config(run_dir="mine", seed=1))
    assert path.exists(), "and to create that one is refused"
    finished_sweep_cells.set_aside(cfg)
    assert not path.exists() and (here / "mine.1" / CONFIG).exists()
    run_dirs.create(cfg)
    finished_sweep_cells.set_aside(cfg)
    assert (here / "mine.2").exists()


class Jobs:
    """Trainings without a training: of a run at a rate its AUC; one of them is cut or fails."""

    def __init__(self, cut: int | None = None, fails: float = 1.0) -> None:
        self.cut, self.fails, self.ran = cut, fails, list[RunConfig]()

    def __call__(self, cfg: RunConfig, command: CommandLine) -> dict[str, Any]:
        if len(self.ran) == self.cut:
            run_dirs.create(cfg)
            raise KeyboardInterrupt
        self.ran.append(cfg)
        if cfg.optim.lr >= self.fails:
            raise GbactlError("diverged")
        return finish(cfg, 0.8 - abs(cfg.optim.lr - 0.001))


OFF = ("tracking.enabled=false",)


@pytest.mark.quick(1)
@pytest.mark.parametrize("place", [(), ("run_dir=made/${mode.name}-${seed}",)], ids=["anywhere", "named"])
def test_the_command_that_a_stopped_sweep_tells_goes_on_with_it(
    place: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    typed, cut, rest = ["-m", *OFF, "mode=sync,gba", "seed=1", *place], Jobs(cut=1), Jobs()
    with pytest.raises(KeyboardInterrupt):
        run_hydra(typed, cut, options=["--trace"])
    last = capsys.readouterr().err.splitlines()[-1]
    done, _, command = last.partition(". Go on with: ")
    assert done == "1 of 2 runs have finished"
    verb, option, *arguments = shlex.split(command)[1:]
    assert option == "--trace"
    run_hydra(arguments, rest, verb)
    assert [(cfg.mode.name, cfg.seed) for cfg in rest.ran] == [("gba", 1)]
    [told] = capsys.readouterr().err.splitlines()
    *before, path = told.split(", ")
    assert before == ["run 1 of 2: sync s1: AUC 0.80000", "finished before"] and (Path(path) / "result.json").exists()
    again = Jobs()
    run_hydra([*arguments, "rerun=true"], again)
    assert len(again.ran) == 2
    with pytest.raises(KeyboardInterrupt):
        run_hydra([*arguments, "rerun=True"], Jobs(cut=1))
    assert "1 of 2 runs have finished. Begin again with: " in capsys.readouterr().err


def test_a_pattern_chooses_the_options_of_a_sweep() -> None:
    ran = Jobs()
    run_hydra(["-m", *OFF, "mode=glob(hop_*)"], ran)
    assert [cfg.mode.name for cfg in ran.ran] == ["hop_bs", "hop_bw"]


def test_runs_without_an_auc_end_no_sweep() -> None:
    ran = list[int]()

    def job(cfg: RunConfig, command: CommandLine) -> dict[str, Any]:
        ran.append(cfg.seed)
        return {**finish(cfg), "auc": None}

    run_hydra(["-m", *OFF, "mode=gba", "seed=1,2"], job)
    assert ran == [1, 2]


def test_every_run_that_fails_is_told_with_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    def job(cfg: RunConfig, command: CommandLine) -> dict[str, Any]:
        if cfg.seed != 2:
            raise DivergedError(f"seed {cfg.seed} diverged")
        return finish(cfg)

    with pytest.raises(DivergedError, match="seed 1 diverged"):
        run_hydra(["-m", *OFF, "mode=gba", "seed=1,2,3"], job)
    assert capsys.readouterr().err.splitlines() == ["run 1 of 3: seed 1 diverged", "run 3 of 3: seed 3 diverged"]
    with pytest.raises(ConfigError, match="cannot be shared"):
        run_hydra(["-m", *OFF, "mode=gba", "cluster.workers=3,2"], job)
    assert capsys.readouterr().err.startswith("run 1 of 2: train.global_batch=")


def test_a_folder_of_own_files_may_be_named_between_overrides(here: Path) -> None:
    (here / "own/experiment").mkdir(parents=True)
    (here / "own/experiment/mine.yaml").write_text("# @package _global_\nmode: {local_batch: 64}\n")
    ran = Jobs()
    run_hydra([*OFF, "mode=gba", "--config-dir", "own", "experiment=mine", "seed=3"], ran)
    assert [(cfg.mode.name, cfg.local_batch, cfg.seed) for cfg in ran.ran] == [("gba", 64, 3)]


def test_a_run_that_a_signal_met_at_its_end_has_finished(capsys: pytest.CaptureFixture[str]) -> None:
    def job(cfg: RunConfig, command: CommandLine) -> dict[str, Any]:
        finish(cfg)
        raise Stopped(2, Stopped.OVER)

    with pytest.raises(Stopped):
        run_hydra(["-m", *OFF, "mode=gba", "seed=1,2"], job)
    assert "1 of 2 runs have finished. Go on with: " in capsys.readouterr().err


def test_a_signal_between_two_runs_stops_the_sweep_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran, set_aside = Jobs(), finished_sweep_cells.set_aside
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody handles it"))

    def signalled(cfg: RunConfig) -> None:
        set_aside(cfg)
        if cfg.seed == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(finished_sweep_cells, "set_aside", signalled)
    try:
        with pytest.raises(Stopped):
            run_hydra(["-m", *OFF, "mode=gba", "seed=1,2"], ran)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert len(ran.ran) == 1 and "1 of 2 runs have finished. Go on with: " in capsys.readouterr().err


@pytest.mark.slow
def test_trials_go_on_where_they_were_and_the_best_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper", reason="the extra gbactl[optuna] is not installed")
    rates = "optim.lr=tag(log, interval(0.0001, 0.01))"
    typed = ["-m", *OFF, "hydra/sweeper=optuna", "mode=gba", rates, "mode.iota=range(0,4)"]
    first, more = Jobs(cut=2), Jobs()
    with pytest.raises(KeyboardInterrupt):
        run_hydra([*typed, "hydra.sweeper.n_trials=3"], first)
    assert "2 of 3 runs have finished. Go on with: gbactl train -m " in capsys.readouterr().err
    run_hydra([*typed, "hydra.sweeper.n_trials=3"], more)
    told = capsys.readouterr()
    assert len(more.ran) == 1 and re.search(r"run 2 of 3: gba lr=.*, finished before, runs/", told.err)
    tried = [*first.ran, *more.ran]
    assert len({cfg.optim.lr for cfg in tried}) == 3 and {cfg.mode.options["iota"] for cfg in tried} <= {0, 1, 2, 3}
    best = min(tried, key=lambda cfg: abs(cfg.optim.lr - 0.001))
    keys = f"mode.iota={best.mode.options['iota']} optim.lr={best.optim.lr}"
    *table, line, train = told.out.splitlines()
    assert sum("gba" in row.split() for row in table) == 3, table
    assert sorted(line.split(":")[1].split()) == sorted(keys.split()) and ": auc 0.79" in line
    assert train.startswith("train it:      gbactl train tracking.enabled=false mode=gba ") and keys.split()[1] in train
    worst = Jobs(fails=0.0)
    with pytest.raises(GbactlError, match="diverged"):
        run_hydra([*typed, "hydra.sweeper.n_trials=2", "seed=5"], worst)
    bold = Jobs(fails=best.optim.lr * 1.01)  # the others diverge, and the sweep goes on
    run_hydra([*typed, "hydra.sweeper.n_trials=3", "seed=6", "objective=auc,eps"], bold)
    assert len(bold.ran) == 3 and "diverged" in capsys.readouterr().err


def test_objectives_are_no_values_of_a_sweep() -> None:
    assert with_tuning(["-m", "objective=auc,eps", "seed=1,2"]) == ["-m", "objective=[auc,eps]", "seed=1,2"]
    assert with_tuning(["objective=[auc, eps]"]) == ["objective=[auc,eps]"]
    given = with_tuning(["-m", "hydra/sweeper=optuna", "hydra.sweeper.sampler.seed=1", "objective=auc,logloss"])
    assert given[1:3] == ["hydra.sweeper.direction=[maximize,minimize]", "hydra.sweeper.n_jobs=1"]
    assert given.index("hydra.sweeper.sampler.seed=0") < given.index("hydra.sweeper.sampler.seed=1")
    with pytest.raises(ConfigError, match="objective=acc is not known; type one or more of: auc, "):
        with_tuning(["objective=acc"])
    assert not hasattr(compose(["rerun=true"]), "rerun"), "options of a sweep are no part of a run"


def test_of_two_objectives_there_are_several_best_trials() -> None:
    trials = [{"params": {"optim.lr": lr}, "values": values} for lr, values in ((0.1, [0.7, 2e4]), (0.2, [0.8, 1e4]))]
    *best, train = best_trials({"solutions": trials}, ["seed=1", "optim.lr=1"], ["auc", "eps"])
    assert best[0] == ("best trial", "optim.lr=0.1: auc 0.7, eps 20000") and len(best) == 2
    assert train[0] == "train it" and train[1].endswith(" seed=1 optim.lr=0.1")
