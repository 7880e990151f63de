"""Each fault of a host is one sentence that names it and says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gbactl.engine import preflight
from gbactl.engine.host_and_network_facts import LinkMeasurement
from gbactl.engine.preflight import HostReport, too_few, too_large
from gbactl.errors import ConfigError
from gbactl.launch.hydra_config import compose
from gbactl.launch.training_run import train

HERE = {"gbactl": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "horovod": "0.28.1", "code": "5a0f"}
GBACTL = "gbactl 0.2.0, and this machine has 0.1.0; install the same version there (make install in the same checkout)."
PYTHON = "Python 3.12.1, and this machine has 3.11.2; make its environment with the same Python."
TORCH = "torch 2.12.0, and this machine has 2.13.0; install the same version there: pip install torch==2.13.0."
HOROVOD = "no Horovod, and this machine has 0.28.1; build the same version there: python -m gbactl.install.horovod."
CODE = "and this machine has 5a0f; check out the same commit there, with the same changes, and type make install."


@pytest.mark.parametrize(
    ("there", "told"),
    [
        ({}, []),
        ({"gbactl": "0.2.0", "code": "91bc"}, [GBACTL]),
        ({"python": "3.12.1"}, [PYTHON]),
        ({"torch": "2.12.0", "horovod": ""}, [TORCH, HOROVOD]),
        ({"code": "91bc"}, [f"gbactl source hash 91bc, {CODE}"]),
        ({"code": ""}, [f"no gbactl source hash, {CODE}"]),
    ],
)  # fmt: skip
def test_versions(there: dict[str, str], told: list[str]) -> None:
    assert preflight.versions("b", {**HERE, **there}, HERE) == [f"Host b has {sentence}" for sentence in told]


def test_memory() -> None:
    assert preflight.memory("b", 5 << 20, 5 << 20) == [] and preflight.memory("b", 0, 1 << 40) == []
    (sentence,) = preflight.memory("b", 5 << 20, 6 << 20)
    assert sentence.startswith("Host b has 5 MiB of memory free, and its servers and workers need 6;")


def test_connections() -> None:
    assert preflight.connection("Host b", "c", "10.0.0.4:4712", LinkMeasurement()) == []
    (sentence,) = preflight.connection("Host b", "c", "10.0.0.4:4712", LinkMeasurement(error="timed out"))
    assert sentence.startswith("Host b does not reach c at 10.0.0.4:4712 (timed out); let TCP through")
    assert sentence.endswith("(net.ipv4.ip_local_port_range).")
    (sentence,) = preflight.connection(
        "This machine", "host b", "10.0.0.3:1", LinkMeasurement(error="no route to host")
    )
    assert sentence.startswith("This machine does not reach host b at 10.0.0.3:1 (no route to host); let TCP")
    assert "cluster.bind" not in sentence
    (sentence,) = preflight.connection("Host b", "the launcher", "127.0.1.1:1", LinkMeasurement(error="refused"))
    assert sentence.endswith(", or type cluster.bind=ADDRESS, one of its own that all hosts reach.")


def test_a_ring_that_nobody_reaches() -> None:
    assert preflight.ring("b", {"name": "node-b", "own_name": "10.0.0.3"}, "10.0.0.3") == []
    (sentence,) = preflight.ring("b", {"name": "node-b", "own_name": "127.0.1.1"}, "10.0.0.3")
    assert sentence.startswith("Host b takes its own name node-b for 127.0.1.1,")
    assert "the line `10.0.0.3 node-b`" in sentence


def test_reaching() -> None:
    refused, start = "ssh: connect to host b port 22: Connection refused", "python3 -m gbactl.engine.agent"
    told = preflight.unreachable("b", refused, "its agent has ended", f"ssh b 'cd /w > /dev/null ; exec {start}'")
    assert told == f"Host b cannot be reached ({refused}); see that `ssh b true` works without a question."
    told = preflight.unreachable("b", "", "its agent has ended", f"kubectl exec -i b -- {start}")
    assert told.endswith("(its agent has ended); see that `kubectl exec -i b -- true` works without a question.")


@pytest.mark.parametrize(
    ("said", "far"),
    [
        ("W3 (pid 7 on c) failed: W3 lost its connection to S1.", "b"),
        ("W3 (pid 7 on c) failed: No gbactl process answers at 10.0.0.3:4711 ([Errno 113] No route to host).", "b"),
        ("W3 (pid 7 on c) failed: W3 lost its connection to S0.", None),  # on the same host
        ("W3 (pid 7 on c) failed: W3 lost its connection to the coordinator.", None),
        ("W3 (pid 7 on c) was killed by SIGKILL.", None),
    ],
)
def test_hosts_that_lose_each_other(said: str, far: str | None) -> None:
    found = preflight.broken_connection("c", said, {"S0": "c", "S1": "b", "10.0.0.3": "b"})
    told = f"Host c does not reach host {far}, though this machine reaches both; see what is between them."
    assert found == ("" if far is None else told)


def test_the_table_s_line() -> None:
    found = HostReport("b", {**HERE, "cores": 4, "memory": 7 << 30}, "10.0.0.3", "eth0", "the same", 1 << 30)
    assert found.cells() == [
        "b", "10.0.0.3", "4", "0.1.0 3.11.2 2.13.0 0.28.1", "7,168 of 1,024 needed", "the same", "ok",
    ]  # fmt: skip
    found.faults.append("Something.")
    assert found.cells()[-1] == "see below"
    assert HostReport("c").cells()[-1] == "no answer"
    assert len(HostReport("c").cells()) == len(found.cells()) == len(preflight.HEADINGS)


class Table:
    """As much of a data set as the arithmetic needs."""

    class schema:
        rows, numeric, fields, list_targets = 1 << 24, 0, 1, ()


def test_the_arithmetic_is_told() -> None:
    """2^24 rows of 13 values with two moments and Adam's count: 160 bytes, 2.5 GiB, and 3 % beside them."""
    cfg = compose(["model=wide_deep", "model.dim=12", "optim=adam", "cluster.servers=4"])
    told = too_large(cfg, Table(), 2 << 30)  # type: ignore[arg-type]
    assert told.startswith(
        "The table's 16,777,216 rows of 160 bytes (values and adam's state) need 2.6 GiB, "
        "and 2.0 GiB of memory are free; "
    )
    assert "optim=rowwise_adagrad" in told and "cluster=hosts" in told


@pytest.mark.parametrize("servers", [1, 3])
def test_what_fits_is_not_refused(servers: int) -> None:
    cfg = compose(["model=wide_deep", "model.dim=12", "optim=adam", f"cluster.servers={servers}"])
    dense = (1 + (12 + 1) * 400 + 2 * 401 * 400 + 401) * 4 * (3 + 4 * (4 + 2))  # of four workers in sync, and servers
    needs = 1.03 * (160 << 24) + dense
    assert too_large(cfg, Table(), int(needs)) == ""  # type: ignore[arg-type]
    assert too_large(cfg, Table(), int(needs) - servers) != ""  # type: ignore[arg-type]
    assert too_large(cfg, Table(), 0) == "", "a system that does not tell"  # type: ignore[arg-type]


HUGE_TABLE = r"The table's [\d,]+ rows of [\d,]+ bytes .* GiB of memory are free"
HUGE_MODEL = (
    r"The dense part's [\d,]+ values of 4 bytes, \d+ times \(values, gradients and adam's state of 4 workers and the "
    r"servers\), need at least [\d,.]+ GiB beside the table's [\d.]+, and [\d,.]+ GiB of memory are free; use a "
    r"smaller model\.hidden or fewer cluster\.workers"
)


@pytest.mark.parametrize("cluster", ["local", "virtual"])
@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["data.max_cardinality=1_000_000_000", "model.dim=512"], HUGE_TABLE),
        (["model.hidden=[9999999,999999]"], HUGE_MODEL),
    ],
)
def test_a_run_that_cannot_fit_starts_nothing(cluster: str, typed: list[str], told: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    cfg = compose([
        f"cluster={cluster}", "mode=async", "data=synthetic", "data.days=2", "data.rows_per_day=1000",
        f"data.cache={tmp_path / 'cache'}", "train.global_batch=64", f"run_dir={run_dir}", "tracking.enabled=false",
        *typed,
    ])  # fmt: skip
    with pytest.raises(ConfigError, match=told):
        train(cfg)
    assert not run_dir.exists()


def test_the_dense_part_s_arithmetic_is_told() -> None:
    """12 + 1 inputs for each of a million, and so on: 14 M values, in 27 vectors."""
    cfg = compose(["model=wide_deep", "model.dim=12", "model.hidden=[1000000]", "optim=adam", "mode=sync"])
    told = too_large(cfg, Table(), 3 << 30)  # type: ignore[arg-type]
    assert told.startswith(
        "The dense part's 14,000,002 values of 4 bytes, 27 times (values, gradients and adam's state of 4 workers and "
        "the servers), need at least 1.4 GiB beside the table's 2.6, and 3.0 GiB of memory are free; "
    )


def test_a_batch_larger_than_a_day_is_told_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = compose([
        "cluster=virtual", "mode=gba", "data.days=2", "data.rows_per_day=600", "data.max_cardinality=100",
        "model.dim=4", "model.hidden=[8]", f"data.cache={tmp_path / 'cache'}", "train.global_batch=1024",
        f"run_dir={tmp_path / 'run'}", "tracking.enabled=false",
    ])  # fmt: skip
    assert too_few(cfg, {"day 0": 2048, "day 1": 1024}) == ""
    train(cfg)
    told = capsys.readouterr().err
    assert "Warning: train.global_batch=1024 is more than the 600 samples of day 0: " in told
    assert told.index("Warning: train.global_batch") < told.index("day 0 of 1")
