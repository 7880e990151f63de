"""The rules between the fields of a configuration, each with the sentence that says what to type."""

from __future__ import annotations

from gbactl.checkpoint.intervals import VARIANTS, estimate_of
from gbactl.config.build import naming, require
from gbactl.config.run import RunConfig
from gbactl.faults.plan import FaultPlan
from gbactl.hosts.placement import hosts_of, place
from gbactl.switching.auto import MODES
from gbactl.switching.schedule import name

ROW_L2_SCOPES = ("touched", "all")
SAVED_DTYPES = ("fp32", "bf16")


def choice(key: str, value: str, options: tuple[str, ...]) -> None:
    require(value in options, f"{key}={value} is not known; type {key}= one of: {', '.join(options)}.")


def _check_batches(cfg: RunConfig) -> None:
    total, workers, local = cfg.train.global_batch, cfg.cluster.workers, cfg.mode.local_batch
    require(total > 0, "train.global_batch must be a positive number of samples.")
    if local is None:
        require(
            total % workers == 0,
            f"train.global_batch={total} cannot be shared by cluster.workers={workers}; type "
            f"train.global_batch={-(-total // workers) * workers} or set mode.local_batch.",
        )
        return
    require(
        local > 0 and total % local == 0,
        f"train.global_batch={total} is not a multiple of mode.local_batch={local}; type "
        f"train.global_batch={max(1, -(-total // max(1, local))) * max(1, local)}.",
    )
    if cfg.mode.name == "sync":
        require(
            total == local * workers,
            f"mode=sync needs train.global_batch = mode.local_batch x cluster.workers = {local * workers}, "
            f"not {total}; leave mode.local_batch out or type train.global_batch={local * workers}.",
        )


def _check_faults(cfg: RunConfig) -> None:
    plan = FaultPlan.of(cfg)
    require(
        not plan.hogs or cfg.cluster.name == "local",
        f"A fault of kind hog takes a real CPU, and cluster={cfg.cluster.name} has none; type cluster=local, or "
        "faults.plans with another kind.",
    )


def check_switch(cfg: RunConfig, to: RunConfig) -> None:
    """Raise ConfigError unless a run of `cfg` can go on as `to`."""
    _check_mode(to)
    require(
        to.mode.sparse_divisor == cfg.mode.sparse_divisor,
        f"A run has one mode.sparse_divisor; add sparse_divisor: {cfg.mode.sparse_divisor} to what is `set`.",
    )


def _check_switches(cfg: RunConfig) -> None:
    switch = cfg.switch
    choice("switch.prepare", switch.prepare, ("servers", "all"))
    choice("switch.checksum", switch.checksum, ("auto", "all"))
    require(0 <= switch.drain_seconds < float("inf"), "switch.drain_seconds must be 0 or more.")
    for number, phase in enumerate(cfg.phases[1:]):
        with naming(name(number)):
            check_switch(cfg, phase)
    choice("switch", switch.name, ("none", "auto"))
    if switch.name == "auto":
        _check_auto(cfg)


def _check_auto(cfg: RunConfig) -> None:
    switch = cfg.switch
    require(
        cfg.mode.name in MODES,
        f"switch=auto chooses between {' and '.join(MODES)}; type mode= one of these, not mode={cfg.mode.name}.",
    )
    require(not switch.schedule, "switch=auto follows no schedule; leave switch.schedule out, or type switch=none.")
    for key in ("window", "every"):
        require(0 < getattr(switch, key) < float("inf"), f"switch.{key} must be a positive number of seconds.")
    for key in ("margin", "hysteresis", "minimum_stay"):
        require(0 <= getattr(switch, key) < float("inf"), f"switch.{key} must be a number of at least 0.")
    require("workers" not in (switch.changes or {}), "switch=auto keeps the workers; no workers in switch.changes.")
    with naming("switch=auto"):
        for candidate in cfg.candidates.values():
            check_switch(cfg, candidate)


def _check_checkpoint(cfg: RunConfig) -> None:
    c = cfg.checkpoint
    choice("checkpoint", c.name, VARIANTS)
    require(0 < c.share <= 1, "checkpoint.share is the part of the rows that a save has, above 0 and at most 1.")
    require(0 < c.large_tables <= 1, "checkpoint.large_tables is a part of all rows, above 0 and at most 1.")
    require(c.keep >= 1, "checkpoint.keep must be at least 1.")
    require(c.base_every >= 0, "checkpoint.base_every must be 0 (never) or more.")
    require(c.mb_per_second >= 0, "checkpoint.mb_per_second must be 0 (as fast as can be) or more.")
    require(c.memory_mb >= 1, "checkpoint.memory_mb must be at least 1.")
    choice("checkpoint.dtype", c.dtype, SAVED_DTYPES)
    require(
        c.interval_seconds is None or c.interval_steps is None,
        "checkpoint.interval_seconds and checkpoint.interval_steps exclude each other; set one of them to null.",
    )
    require((c.interval_seconds or 1) > 0, "checkpoint.interval_seconds must be positive.")
    require(c.interval_steps is None or c.interval_steps >= 1, "checkpoint.interval_steps must be at least 1.")
    estimate_of(c, cfg.cluster.servers)


def _check_hosts(cfg: RunConfig) -> None:
    if not cfg.several_hosts:
        return
    place(hosts_of(cfg.cluster.hosts), cfg.processes, cfg.cluster.servers, cfg.cluster.placement)
    require(
        cfg.collective.name == "horovod",
        f"collective={cfg.collective.name} works within one host; with cluster=hosts type collective=horovod.",
    )
    require(bool(cfg.cluster.ssh.strip()), "cluster.ssh is the command that reaches a host; type cluster.ssh=ssh.")


def _check_mode(cfg: RunConfig) -> None:
    cfg.policy_options().check_workers(cfg.cluster.workers)
    choice("mode.sparse_divisor", cfg.mode.sparse_divisor, ("global", "contributors"))
    require(cfg.mode.prefetch in (0, 1), "mode.prefetch is 0 or 1.")
    _check_batches(cfg)


def check_transport(cfg: RunConfig) -> None:
    """Raise ConfigError where what is asked for does not reach everything that a run sends."""
    choice("transport.wire_dtype", cfg.transport.wire_dtype, ("fp32", "fp16", "bf16"))
    ring = cfg.collects and cfg.collective.name in ("horovod", "gloo") and cfg.cluster.name not in ("local", "virtual")
    require(
        not (cfg.transport.encrypt and ring),
        f"transport.encrypt=true does not reach the all-reduce of collective={cfg.collective.name} between hosts, "
        "which nothing encrypts; type a mode without one (gba), or transport.encrypt=false on a network you trust.",
    )


def check(cfg: RunConfig) -> RunConfig:
    """Apply the cross-field rules. Raises ConfigError with one sentence that says what to type."""
    choice("cluster", cfg.cluster.name, ("local", "hosts", "virtual"))
    choice("cluster.transport", cfg.cluster.transport, ("shm", "tcp"))
    choice("cluster.pin", cfg.cluster.pin, ("auto", "off"))
    choice("cluster.lost_worker", cfg.cluster.lost_worker, ("end", "continue", "replace"))
    choice("cluster.lost_coordinator", cfg.cluster.lost_coordinator, ("end", "replace"))
    require(cfg.cluster.hang_seconds > 0, "cluster.hang_seconds must be positive.")
    choice("collective", cfg.collective.name, ("horovod", "gloo", "shm"))
    choice("train.on_divergence", cfg.train.on_divergence, ("stop", "continue"))
    choice("precision", cfg.precision, ("fp32", "bf16"))
    choice("optim.name", cfg.optim.name, ("sgd", "adagrad", "rowwise_adagrad", "adam"))
    choice("optim.row_l2", cfg.optim.row_l2, ROW_L2_SCOPES)
    choice("optim.schedule.name", cfg.optim.schedule.name, ("constant", "linear", "inverse_sqrt", "cosine"))
    choice("model.name", cfg.model.name, ("deepfm", "wide_deep"))
    require(cfg.cluster.workers >= 1, "cluster.workers must be at least 1.")
    require(cfg.cluster.servers >= 1, "cluster.servers must be at least 1.")
    require(
        1 <= cfg.cluster.dense_holders <= cfg.cluster.servers,
        f"cluster.dense_servers={cfg.cluster.dense_servers} cannot be among cluster.servers={cfg.cluster.servers}; "
        f"type 1 to {cfg.cluster.servers}, or null for all.",
    )
    require(cfg.optim.lr > 0, "optim.lr must be positive.")
    schedule = cfg.optim.schedule
    require(
        schedule.name != "cosine" or schedule.total > schedule.warmup,
        "optim.schedule.name=cosine ends at optim.schedule.total global batches; type a total above the warm-up.",
    )
    require(cfg.train.epochs >= 1, "train.epochs must be at least 1.")
    require(cfg.train.eval_batch >= 1, "train.eval_batch must be at least 1.")
    require(cfg.train.patience >= 0, "train.patience must be 0 (never stop early) or more.")
    require((cfg.train.max_eval_samples or 1) >= 1, "train.max_eval_samples must be at least 1.")
    require(0 <= cfg.model.dropout < 1, "model.dropout must be in [0, 1).")
    require(cfg.model.dim >= 1, "model.dim must be at least 1.")
    require(all(n >= 1 for n in cfg.model.hidden), "model.hidden is a list of sizes of at least 1.")
    require(cfg.collective.buckets >= 1, "collective.buckets must be at least 1.")
    cycle = cfg.collective.cycle_time_ms
    require(cycle is None or cycle > 0, "collective.cycle_time_ms must be positive, or null.")
    require(cfg.cluster.start_timeout > 0, "cluster.start_timeout must be positive.")
    require(cfg.cluster.stop_seconds >= 0, "cluster.stop_seconds must be 0 (end at once) or more.")
    require(cfg.cluster.threads is None or cfg.cluster.threads >= 1, "cluster.threads must be at least 1.")
    _check_mode(cfg)
    _check_hosts(cfg)
    _check_switches(cfg)
    _check_faults(cfg)
    _check_checkpoint(cfg)
    check_transport(cfg)
    cfg.cost.check()
    return cfg
