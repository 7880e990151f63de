"""Lines of the benchmark that are ratios of two rates, with their targets."""

from __future__ import annotations

from collections.abc import Iterator

from bench_lines import Pair
from ratio_sides import Bench, data_path, gbactl, plain_peer, reference, rpc_peer
from server_cpu import server_cpu
from table_sizes import max_cardinality
from unauthenticated_clients import crowded

BF16 = "precision=bf16"
ADAGRAD = "optim=adagrad"
ONE_MILLION, TEN_MILLION = 1_000_000, 10_000_000
SAVES = 3  # times as many samples as others, so that a run contains a whole save


def pairs(bench: Bench) -> list[Pair]:
    """List all pairs, without measuring them."""
    return [
        *async_pairs(bench), *sync_pairs(bench), *single_pairs(bench), *scale_pairs(bench), *saving_pairs(bench),
        *network_pairs(bench), *list_pairs(bench),
    ]  # fmt: skip


def async_pairs(bench: Bench) -> Iterator[Pair]:
    """Pairs of async and gba with the reference, each other, and a parameter server on rpc."""
    shm, tcp = (gbactl(bench, "async", 4, 512, f"cluster.transport={t}") for t in ("shm", "tcp"))
    low, alone = gbactl(bench, "async", 4, 512, BF16), reference(bench, 4, 512)
    yield Pair("async-shm", "async 4+1, shared memory / reference", shm, alone, 0.93)
    yield Pair("async-tcp", "async 4+1, TCP / reference", tcp, alone, 0.82)
    yield Pair("async-bf16", "async 4+1, bf16 / reference, bf16", low, reference(bench, 4, 512, BF16), 0.85)
    yield Pair("bf16-async", "async 4+1, bf16 / async 4+1, fp32", low, shm, 1.55)
    yield Pair("gba", "gba 4+1 / async 4+1", gbactl(bench, "gba", 4, 512), shm, 0.98)
    peer = "torch.distributed.rpc 4+1"
    yield Pair("rpc", f"async 4+1 / {peer}, as in torch's tutorial", shm, rpc_peer(bench, 4, 512, "--wait"), 1.25)
    yield Pair("rpc-ahead", f"async 4+1 / {peer}, prefetching", shm, rpc_peer(bench, 4, 512), 1.25)


def network_pairs(bench: Bench) -> Iterator[Pair]:
    """Pairs for the costs of a shared network: encryption, and connections from unauthenticated clients."""
    tcp = gbactl(bench, "async", 4, 512, "cluster.transport=tcp")
    secret = gbactl(bench, "async", 4, 512, "cluster.transport=tcp", "transport.encrypt=true")
    yield Pair("encrypt", "async 4+1, TCP, encrypted / TCP", secret, tcp, 0.85)
    what, idle = "async 4+1, TCP, 1,000 strangers at every door", crowded(bench, "async", 4, 512, again=0)
    yield Pair("strangers", f"{what} / TCP", crowded(bench, "async", 4, 512), tcp, 0.90)
    yield Pair("strangers-once", f"{what}, who stay away when they are sent away / TCP", idle, tcp, 0.90)


def list_pairs(bench: Bench) -> Iterator[Pair]:
    """Pair for the cost of a multi-valued field, beside fields of one id with as many values.

    The model is small, so that the ratio does not depend on its input, which is narrower with the list."""
    small = "model.hidden=[16]"
    lists = gbactl(bench, "async", 4, 512, small, "data.fields=13", "data.lists=1", "data.list_length=26")
    what = "async 4+1, one layer of 16: 13 fields and a list of 13 values on average / 26 fields"
    yield Pair("lists", what, lists, gbactl(bench, "async", 4, 512, small), round(1 / 1.3, 2))


def sync_pairs(bench: Bench) -> Iterator[Pair]:
    """Pairs of sync, by collective, with the reference and the plain scripts."""
    for collective, batch, target in (
        ("horovod", 512, 0.70), ("horovod", 4096, 0.87), ("shm", 512, 0.80), ("shm", 4096, 0.90),
    ):  # fmt: skip
        sync, what = gbactl(bench, "sync", 2, batch, f"collective={collective}"), named(collective, batch)
        name = f"sync-{batch}" if collective == "horovod" else f"sync-shm-{batch}"
        yield Pair(name, f"{what} / reference", sync, reference(bench, 2, batch), target)
        if collective == "horovod":
            peer = plain_peer(bench, "hvd_peer.py", 2, batch)
            yield Pair(f"hvd-{batch}", f"{what} / plain Horovod script", sync, peer, 1.3)
    for collective in ("shm", "horovod"):
        sync, peer = gbactl(bench, "sync", 2, 512, f"collective={collective}"), plain_peer(bench, "ddp_peer.py", 2, 512)
        yield Pair(f"ddp-{collective}", f"{named(collective, 512)} / plain DDP (Gloo) script", sync, peer, 1.3)


def named(collective: str, batch: int) -> str:
    """Describe a sync run, always with its collective."""
    return f"sync 2+1, collective={collective}, batch {batch}"


def single_pairs(bench: Bench) -> Iterator[Pair]:
    """Yield what is compared as ratios in one process: bf16 / fp32, gbactl / plain torch loop, data path / training."""
    single = reference(bench, 1, 512, processes=1)
    low = reference(bench, 1, 512, BF16, processes=1)
    yield Pair("bf16-single", "one process, bf16 / fp32", low, single, 1.7)
    peer = plain_peer(bench, "dlrm_peer.py", 1, 512, ADAGRAD)
    for name, extra, target in (("fp32", (), 1.22), ("bf16", (BF16,), 1.9)):
        own = reference(bench, 1, 512, ADAGRAD, *extra, processes=1)
        yield Pair(f"alone-{name}", f"one process, {name} / plain torch in the manner of DLRM, fp32", own, peer, target)
    for name, shuffle in (("data-path", False), ("data-path-shuffle", True)):
        what = f"cached data path{', shuffled' if shuffle else ''} / training of one worker"
        yield Pair(name, what, data_path(bench, 1, 512, shuffle), single, 20.0)


def scale_pairs(bench: Bench) -> Iterator[Pair]:
    """Pairs for ten times the rows, and for more servers."""
    small, large = (f"data.max_cardinality={max_cardinality(rows)}" for rows in (ONE_MILLION, TEN_MILLION))
    base, variant = (gbactl(bench, "async", 4, 512, cardinality) for cardinality in (small, large))
    yield Pair("rows", "async 4+1, 10 M rows / 1 M rows", variant, base, 0.90)
    for servers, target in ((2, 1.3), (4, 1.6)):
        what = f"CPU of all servers per push + pull, async 4+{servers} / 4+1"
        sides = (server_cpu(bench, f"cluster.servers={n}") for n in (servers, 1))
        yield Pair(f"server-cpu-{servers}", what, *sides, target, at_least=False, unit="ms")


def saving_pairs(bench: Bench) -> Iterator[Pair]:
    """Pairs for training while checkpoints are written continuously, and for each priority's cost between two saves."""
    rows = f"data.max_cardinality={max_cardinality(ONE_MILLION)}"
    never = gbactl(bench, "async", 4, 512, rows)
    long = f"data.rows_per_day={SAVES * bench.rows}"
    saving = ("checkpoint=full", "checkpoint.interval_seconds=0.001")
    without, always = (gbactl(bench, "async", 4, 512, rows, long, *more) for more in ((), saving))
    yield Pair("saving", "async 4+1, 1 M rows, checkpoints written all the time / none", always, without, 0.99)
    for name in ("scar", "mfu", "ssu"):
        noting = gbactl(bench, "async", 4, 512, rows, f"checkpoint=cpr_{name}", "checkpoint.interval_seconds=1e6")
        what = f"async 4+1, 1 M rows, checkpoint=cpr_{name} between two saves / none"
        yield Pair(f"priority-{name}", what, noting, never, 0.99)
