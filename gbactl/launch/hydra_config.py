"""Composition of the configuration with Hydra: overrides in, a checked RunConfig out.

Importing this module imports Hydra (about 0.15 s); only the launcher and the commands that need a configuration do so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from time import monotonic as now
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from gbactl import configured_classes
from gbactl.checked_dataclasses import build, did_you_mean
from gbactl.conf_catalogue import (
    GROUPS,
    ROOT,
    as_override,
    bases,
    conf_dir,
    default_option,
    entries,
    entries_of,
    option_files,
    options,
    set_search_folders,
    unknown,
)
from gbactl.config import RunConfig, flatten, from_dict, to_dict
from gbactl.config.engine_interface import AUTO, detected_engine, engine_named
from gbactl.config.groups import CostConfig, ModeConfig
from gbactl.config.run_config import ineffective_keys
from gbactl.engine.stop_signals import stoppable
from gbactl.errors import ConfigError, GbactlError, Stopped, UsageError
from gbactl.faults.fault_kinds import with_traces
from gbactl.launch import finished_sweep_cells
from gbactl.launch.progress import score, shown_path
from gbactl.launch.resume import KEY as RESUME
from gbactl.launch.resume import group_choices, overridden_key, resumed
from gbactl.launch.sweep_parent_run import (
    SEARCH_PATH,
    SweepCallback,
    SweepOptions,
    adopt,
    before_overrides,
    close_sweeps,
    with_tuning,
)
from gbactl.models import ModelConfig
from gbactl.switching.auto_controller import GBA, SYNC
from gbactl.tracking.run_description import CommandLine, SweepPlace, run_name

ESCAPED = re.compile(r"\$\\\{([\w.]+)\\\}")  # ${KEY} in an override, as Hydra's sweeper writes it
CHOSEN_AUTO = re.compile(r"(cluster=(?:.*,)?)auto(?=,|$)")
ROOT_CONFIG = ROOT.removesuffix(".yaml")
OF_A_SWEEP = tuple(field.name for field in dataclasses.fields(SweepOptions))
NOT_OF_A_RUN = ("hydra", *OF_A_SWEEP)
# keys that are read before all are checked
NEEDED = ("mode.name", "model.name", "data.name", "switch.name", "faults.plans")
COMMON = {"mode": ModeConfig, "model": ModelConfig}  # classes of the keys that all targets of a group have
CONFIG_DIR = ("--config-dir", "-cd")


def to_run_config(cfg: DictConfig, typed: Sequence[str], own: Any) -> RunConfig:
    """Convert a composed configuration to a checked RunConfig. Raises ConfigError.

    With resume=, it is that run's configuration, changed by the `typed` keys. `own`: Hydra's own configuration, whose
    search path is searched by this process from now on."""
    set_search_folders([folder for each in own.runtime.config_sources if (folder := _folder(each)) is not None])
    try:
        values = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(_one_line(error)) from error
    assert isinstance(values, dict)
    if lacking := next((key for key in NEEDED if OmegaConf.select(cfg, key) is None), None):
        group = lacking.partition(".")[0]
        raise ConfigError(f"{lacking} is needed; type {group}=OPTION, whose file sets it, and no ~{group}.")
    for group in configured_classes.GROUPS:
        values[group] = _targeted(group, values[group], str(own.runtime.choices.get(group)), typed)
    values["switch"]["modes"] = [mode_file(mode) for mode in _other_modes(values["switch"], values["mode"])]
    values["faults"]["plans"] = with_traces(values["faults"]["plans"])
    found = {str(k): v for k, v in values.items() if k not in NOT_OF_A_RUN}
    return from_dict(found if found["resume"] is None else resumed(found, typed))


def _folder(source: Any) -> Path | None:
    """Return the folder of an entry of Hydra's search path; None for the entries of Hydra itself and of gbactl."""
    if source.provider in ("hydra", "main") or source.schema not in ("file", "pkg"):
        return None
    return Path(str(resources.files(source.path) if source.schema == "pkg" else source.path))


def _targeted(group: str, found: dict[str, Any], option: str, typed: Sequence[str]) -> dict[str, Any]:
    """Return a group's keys as its target needs them, with the keys under `options` moved up beside the others.

    Keys in the file of the chosen `option` are for the target there: with another one, those that not every target has
    are left out unless `typed`, and so is the name. A target of gbactl's own follows from the name; it is left out.
    Raises UsageError for another option's name, which chooses neither its class nor its keys."""
    target, name = found.get("target"), str(found["name"])
    builtin = configured_classes.builtin_target(group, name)
    if target == builtin:
        return {key: value for key, value in found.items() if key != "target"}
    file = _option_file(group, option)
    if builtin is not None and target is not None and target == file.get("target") and name != file.get("name", name):
        raise UsageError(f"{group}.name={name} chooses no {group}; type {group}={name}.")
    if target is not None and file.get("target") != target:
        common = COMMON.get(group)
        kept = {"name", "target", "cache"} if common is None else {each.name for each in dataclasses.fields(common)}
        kept |= {overridden_key(text).removeprefix(f"{group}.") for text in typed}
        found = {key: value for key, value in found.items() if key in kept or key not in file}
        if found["name"] == file.get("name"):
            found["name"] = str(target).rpartition(".")[2]
    return {**{key: value for key, value in found.items() if key != "options"}, **(found.get("options") or {})}


def _other_modes(switch: dict[str, Any], mode: dict[str, Any]) -> list[str]:
    """Return the names of the modes that a run will or may switch to."""
    if switch["name"] == "auto":
        return [SYNC if mode["name"] == GBA else GBA]
    return [str(entry.get("to")) if isinstance(entry, dict) else "" for entry in switch.get("schedule") or []]


def mode_file(mode: str) -> dict[str, Any]:
    """Load conf/mode/NAME.yaml of a mode that a switch names; {} for an unknown mode.

    The configuration's check reports an unknown mode."""
    found = _option_file("mode", mode)
    return _targeted("mode", found, mode, ()) if found else {}


def _option_file(group: str, option: str) -> dict[str, Any]:
    """Load the file that GROUP=OPTION chooses, merged over the files of its defaults list; {} if there is none."""
    path = option_files(group).get(option)
    if path is None:
        return {}
    own = OmegaConf.load(path)
    assert isinstance(own, DictConfig)
    below = map(OmegaConf.load, bases(path.parent, own.get("defaults", ())))
    found = OmegaConf.to_container(OmegaConf.merge(*below, own), resolve=True)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key != "defaults"}


def defaults_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flattened defaults of all keys; for each group, the defaults of the option that `config` has chosen.

    The name of a group's option has the default of the group."""
    found = flatten(to_dict(RunConfig()))
    files = {group: values["name"] for group, values in config.items() if isinstance(values, dict) and "name" in values}
    for group, option in files.items():
        own = flatten(_option_file(group, str(option)), f"{group}.")
        found |= {key: value for key, value in own.items() if key != f"{group}.name"}
    main = {key: entry.value for key, entry in entries(conf_dir() / ROOT).items()}
    return {**found, **main, **{f"{group}.name": name for group in GROUPS if (name := default_option(group))}}


def with_shown_engine(overrides: Sequence[str]) -> list[str]:
    """Replace cluster=auto, also in a sweep's list, by the engine detected here; print its name on standard error."""
    if not any(map(CHOSEN_AUTO.match, overrides)):
        return list(overrides)
    name = detected_engine(os.environ)
    print(f"cluster={AUTO}: in {engine_named(name).surroundings}, so cluster={name}", file=sys.stderr, flush=True)
    return [CHOSEN_AUTO.sub(rf"\g<1>{name}", text) for text in overrides]


def compose(overrides: list[str]) -> RunConfig:
    """Compose conf/train.yaml with Hydra overrides, and check it. Raises UsageError with the valid keys or options."""
    overrides = with_shown_engine(overrides)
    with _explained():
        cfg = composed(overrides)
        rest = OmegaConf.masked_copy(cfg, [str(key) for key in cfg if key != "hydra"])
        return to_run_config(rest, overrides, cfg.hydra)


def composed(overrides: list[str]) -> DictConfig:
    """Compose conf/train.yaml with overrides, unchecked, with Hydra's own keys. Raises UsageError."""
    opened = _with_new_keys_allowed(overrides)
    if option := next((text for text in opened if text.startswith("-")), None):
        raise UsageError(f"{option} is no option here; type GROUP=OPTION or KEY=VALUE, or --help for the options.")
    with _explained():
        GlobalHydra.instance().clear()
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(conf_dir())):
            given = before_overrides(group_choices(overrides, conf_dir()), with_cost_file(opened))
            return hydra.compose(ROOT_CONFIG, overrides=given, return_hydra_config=True)


def run_hydra(
    arguments: list[str], job: Callable[[RunConfig, CommandLine], Any], verb: str = "train", options: Sequence[str] = ()
) -> None:
    """Run a command line through Hydra: single runs, --multirun, --cfg, --info.

    `verb`: the command, such as train; `options`: the command's own, such as --trace, which `job` follows. At the end
    of a sweep its comparison is printed, unless the options include --json."""

    def task(cfg: DictConfig) -> Any:
        own, place = HydraConfig.get(), None
        if own.mode is RunMode.MULTIRUN:
            swept, trials = _swept(arguments), own.sweeper.get("n_trials")
            sweep.of, sweep.tunes = trials or math.prod(swept.values()), trials is not None
            place = SweepPlace(own.job.num + 1, sweep.of, tuple(sweep.took))
        try:
            typed = [ESCAPED.sub(r"${\1}", text) for text in own.overrides.task if text not in chosen]
            run = to_run_config(cfg, typed, own)
            typed = [text for text in own.overrides.hydra if text.startswith(SEARCH_PATH)] + typed
            if place is None:
                return job(run, CommandLine(verb, tuple(typed)))
            asked = OmegaConf.to_container(OmegaConf.masked_copy(cfg, list(OF_A_SWEEP)))
            assert isinstance(asked, dict)
            of_sweep = build(SweepOptions, {str(key): value for key, value in asked.items()}, "")
            command = CommandLine(verb, tuple(typed), tuple(swept), place)
            result = None if of_sweep.rerun else finished_sweep_cells.find(run)
            if result is None:
                finished_sweep_cells.set_aside(run)
                began = now()
                result = job(run, command)
                sweep.took.append(now() - began)
            else:
                _reuse(result, run, command, as_json)
            sweep.done += 1
            sweep.finished.append(Path(result["run_dir"]))
            return of_sweep.values_of(result) if sweep.tunes else None
        except Stopped as stopped:
            sweep.done += stopped.outcome == Stopped.OVER
            raise
        except GbactlError as error:
            if os.getpid() != home:  # a sweep's launcher (joblib, submitit) passes the error to the parent process
                raise
            # Hydra prints a line of its own for an exception; the command line prints the first of these instead
            sweep.failed.append(error)
            if place is not None:
                print(f"{place}: {error}", file=sys.stderr, flush=True)
            return None

    given, arguments, as_json = arguments, with_shown_engine(arguments), "--json" in options
    # Hydra derives its job name from sys.argv and prints tracebacks itself unless told not to.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    main = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=ROOT_CONFIG)(task)
    sweep, home = _Sweep(), os.getpid()
    chosen = group_choices(arguments, conf_dir())
    typed_here = before_overrides(chosen, with_tuning(with_cost_file(_with_new_keys_allowed(arguments))))
    _check_options(typed_here)
    SweepCallback.command, SweepCallback.chosen = shlex.join(["gbactl", verb, *options, *given]), chosen
    saved, sys.argv = sys.argv, [f"gbactl {verb}", *typed_here]
    try:
        with stoppable(), _explained():  # a signal may come between two runs of a sweep, or to the parent of its jobs
            main()
    except GbactlError as error:
        sweep.failed.append(error)
    except BaseException:
        if {"-m", "--multirun"} & set(arguments):
            print(sweep.way_on(["gbactl", verb, *options, *arguments]), file=sys.stderr)
        close_sweeps("KILLED")
        raise
    finally:
        sys.argv = saved
        close_sweeps("FINISHED" if sweep.succeeded else "FAILED", not as_json, sweep.mistyped, sweep.finished)
    if not sweep.succeeded:
        raise sweep.failed[0]


def _reuse(result: dict[str, Any], run: RunConfig, command: CommandLine, as_json: bool) -> None:
    """Make a finished run one of a sweep's runs instead of training it again, and print its result."""
    name, path = run_name(result["mode"], run.seed, command, ineffective_keys(run)), Path(result["run_dir"])
    print(
        f"{command.place}: {name}: AUC {score(result['auc'])}, finished before, {shown_path(path)}",
        file=sys.stderr, flush=True,
    )  # fmt: skip
    adopt(result, run.tracking)
    if as_json:
        print(json.dumps(result), flush=True)


def _check_options(arguments: Sequence[str]) -> None:
    """Raise UsageError for options that Hydra does not take; its parser would print its own usage."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            get_args_parser().parse_args(arguments)
    except SystemExit as ended:
        if not ended.code:  # --version
            raise
        why = said.getvalue().strip().rpartition("error: ")[2]
        hint = "an override is GROUP=OPTION or KEY=VALUE, and options, which --help lists, stand before the first one"
        raise UsageError(f"{why[:1].upper()}{why[1:]}; {hint}.") from ended


@dataclasses.dataclass
class _Sweep:
    """Progress of a sweep in this process: numbers of runs in all and done, seconds, directories, and failures."""

    of: int = 0
    tunes: bool = False
    done: int = 0
    took: list[float] = dataclasses.field(default_factory=list)
    finished: list[Path] = dataclasses.field(default_factory=list)
    failed: list[GbactlError] = dataclasses.field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        """Whether no run has failed or, in tuning, where failed trials are normal, any run has finished."""
        return not self.failed or (self.tunes and self.done > 0)

    @property
    def mistyped(self) -> bool:
        """Whether no run of this process has finished, as the command line or a configuration is wrong."""
        return not self.done and bool(self.failed) and all(isinstance(error, UsageError) for error in self.failed)

    def way_on(self, command: Sequence[str]) -> str:
        """Describe how to continue a sweep that was stopped, with the number of finished runs if it is known."""
        alone = self.of and not any(text.startswith("hydra/launcher=") for text in command)
        done = f"{self.done} of {self.of} runs have finished. " if alone else ""
        again = "Begin again with" if "rerun=true" in map(str.lower, command) else "Go on with"
        return f"{done}{again}: {shlex.join(command)}"


def _swept(arguments: Sequence[str]) -> dict[str, int]:
    """Return the keys that a sweep varies, from its sweeper's params or its command line, with the number of values."""
    params = (HydraConfig.get().sweeper.get("params") or {}).items()
    typed = [text for text in arguments if "=" in text and not text.startswith(("-", "~"))]
    overrides = [*(f"{key}={value}" for key, value in params), *typed]
    parsed = OverridesParser.create(GlobalHydra.instance().config_loader()).parse_overrides(overrides)
    return {
        override.key_or_group: len(list(override.sweep_string_iterator())) if override.is_discrete_sweep() else 1
        for override in parsed if override.is_sweep_override()
    }  # fmt: skip


def _with_new_keys_allowed(arguments: Sequence[str]) -> list[str]:
    """Put ++ before keys that may be in no file of conf, so that Hydra adds them.

    These are the keys of a group with a user's class, GROUP.options.KEY, and model.dims.FIELD.
    --config-dir becomes an override, and so a part of the run's command, which can then be repeated. The beginning of
    a run id, such as 3e45, is put in quotes where Hydra would read a number."""
    made = list[str]()
    foreign = tuple(f"{group}." for group in configured_classes.GROUPS if _has_foreign_target(group, arguments))
    free = (*foreign, *(f"{group}.options." for group in configured_classes.GROUPS), "model.dims.")
    for text in arguments:
        if made and made[-1] in CONFIG_DIR:
            folder = as_override(f"file://{Path(text).resolve()}")  # not as_uri(): Hydra takes %20 as it is
            made[-1] = f"{SEARCH_PATH}[{folder}]"
        elif text.startswith(f"{CONFIG_DIR[0]}="):
            made += _with_new_keys_allowed(text.split("=", 1))
        elif re.fullmatch(rf"{RESUME}=\d\w*", text):
            made.append(f"{RESUME}={as_override(text.partition('=')[2])}")
        else:
            made.append(f"++{text}" if text.startswith(free) else text)
    searched = [text for text in made if text.startswith(SEARCH_PATH)]
    if len(searched) > 1:  # of which Hydra would take the last one alone
        folders = ",".join(text.removeprefix(SEARCH_PATH).strip("[]") for text in searched)
        made = [text for text in made if text not in searched] + [f"{SEARCH_PATH}[{folders}]"]
    return made


def _has_foreign_target(group: str, arguments: Sequence[str]) -> bool:
    """Return whether the command line chooses a class of the user's for a group, by a target or by an option.

    An experiment of the user's may choose one."""
    options, experiments = (_typed(each, arguments) for each in (group, "experiment"))
    own = any(word.isidentifier() and configured_classes.builtin_target(group, word) is None for word in options)
    own |= any(not (conf_dir() / "experiment" / f"{word}.yaml").is_file() for word in experiments)
    return own or any(text.startswith(f"{group}.target=") for text in arguments)


def _typed(group: str, arguments: Sequence[str]) -> list[str]:
    """List the options of a group that the command line chooses, one or those of a sweep."""
    return [word for text in arguments if text.startswith(f"{group}=") for word in text.partition("=")[2].split(",")]


def with_cost_file(arguments: list[str]) -> list[str]:
    """Replace the override `cost=FILE.yaml` by one override for each key in the file.

    The run's configuration is then complete, and keys typed beside the file override it. Raises UsageError for a file
    that is missing or is no cost model."""
    files = [argument for argument in arguments if re.match(r"cost=.*\.ya?ml$", argument)]
    if not files:
        return arguments
    rest = [argument for argument in arguments if argument not in files]
    return before_overrides(_cost_keys(Path(files[-1].partition("=")[2]).expanduser()), rest)


def _cost_keys(path: Path) -> list[str]:
    """Read a cost model's file as a list of overrides."""
    try:
        values = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, ValueError, YAMLError) as error:
        raise UsageError(f"The cost model {path} cannot be read: {_one_line(error)}") from error
    keys = [field.name for field in dataclasses.fields(CostConfig)]
    found = {str(key): value for key, value in values.items()} if isinstance(values, dict) else {}
    unknown = sorted(set(found) - set(keys))
    if unknown or not found:
        problem = f"it has the unknown keys {', '.join(unknown)}" if unknown else "it has no lines KEY: VALUE"
        raise UsageError(f"{path} is no cost model: {problem}; a cost model has the keys: {', '.join(keys)}.")
    return [f"cost.{key}={as_override(value)}" for key, value in found.items()]


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(_explain(error)) from error
    except ValueError as error:
        if "No trials are completed" in str(error):
            raise GbactlError("No trial has finished.") from error
        if "Only one of --run" in str(error):
            raise UsageError(str(error)) from error
        if "Config group override" not in str(error):
            raise
        raise UsageError("A group cannot be null; type GROUP=OPTION, for instance mode=gba.") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _explain(error: BaseException) -> str:
    text = _one_line(error).split(" Config search path:")[0]
    if "'hydra/sweeper/optuna'" in text:
        return "hydra/sweeper=optuna needs Optuna; type: pip install 'gbactl[optuna]'"
    if option := re.search(r"Could not find '(\w+)/(\w+)'", text):
        return ". ".join(filter(None, [text, did_you_mean(option[2], options(option[1]))]))
    if without := re.search(r"Error parsing override '(.*)' missing EQUAL", text):
        return f"{without[1]!r} is no override; type GROUP=OPTION or KEY=VALUE, without spaces around the =."
    if several := re.search(r"Ambiguous value for argument '(.*?)' 1\.", text):
        return f"{several[1]} has several values; type -m for a run with each of them, or KEY=[VALUE,VALUE] for a list."
    found = re.search(r"Could not override '([^']+)'", text)
    return _unknown_key(found[1]) if found else text


def _unknown_key(key: str) -> str:
    """Describe what to type instead of an unknown key."""
    if f"{key}.".startswith("tracking.tags."):
        return f"To add a tag, type +{key if key.count('.') > 1 else f'{key}.NAME'}=VALUE."
    if having := sorted(filter(None, entries_of(key))):
        group = key.partition(".")[0]
        return f"{key} does not belong to the chosen {group}; type {group}= one of: {', '.join(having)}."
    return unknown(key)
