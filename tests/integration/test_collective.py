"""All-reduce between real processes: right sums, the same bits every time, and an end when a rank dies."""

from __future__ import annotations

import hashlib
import http.client
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from gbactl.collective import open_rendezvous
from gbactl.collective.base import Rendezvous, sum_in_rank_order
from gbactl.collective.gloo import interface_of
from gbactl.collective.horovod import MOST_VISITORS
from gbactl.errors import ClusterError
from gbactl.kernels import codec_of
from gbactl.kernels.half_precision import rounded
from tests.integration.collective_worker import main
from tests.support.commands import Command
from tests.support.processes import busy_neighbour

pytestmark = pytest.mark.beside

LIMIT = 60  # seconds for a whole group
KINDS = ("horovod", "gloo", "shm")


@pytest.fixture
def meeting_of(tmp_path: Path):
    """Opens a rendezvous by kind. Skips Horovod where it is not."""

    def make(kind: str, size: int) -> Rendezvous:
        if kind == "horovod":
            pytest.importorskip("horovod.torch", exc_type=ImportError)
        return open_rendezvous(kind, size, tmp_path)

    return make


@contextmanager
def group(meeting: Rendezvous, size: int, *args: int, item: int = 4) -> Iterator[list[Command]]:
    """`size` ranks, each a forked process, that are gone when the block ends, however it ends."""
    common = {**os.environ, "OMP_NUM_THREADS": "1"}
    given = tuple(map(str, (*args, item)))
    ranks: list[Command] = []
    with meeting:
        try:
            for rank in range(size):
                ranks.append(Command(given, Path.cwd(), {**common, **meeting.environment(rank)}, main))
            yield ranks
        finally:
            for process in ranks:
                process.kill()
                process.wait(LIMIT)


def outputs(ranks: list[Command]) -> list[str]:
    deadline = time.monotonic() + LIMIT
    texts = []
    for process in ranks:
        out, err = process.communicate(timeout=max(1.0, deadline - time.monotonic()))
        assert process.returncode == 0, out + err
        texts.append(out.strip())
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [3, 4])
def test_two_runs_give_the_same_bits_on_every_rank_with_a_hog_beside_the_second(
    kind: str, size: int, meeting_of
) -> None:
    with group(meeting_of(kind, size), size, 12, 20_011, 3, -1) as ranks:
        quiet = outputs(ranks)
    with busy_neighbour(), group(meeting_of(kind, size), size, 12, 20_011, 3, -1) as ranks:
        strained = outputs(ranks)
    assert len({text.split()[1] for text in quiet}) == 1
    assert quiet == strained
    assert all(text.endswith("grpc=False") for text in quiet)


def expected_digest(size: int, rounds: int, length: int, wire: str = "fp32") -> str:
    digest, codec = hashlib.sha256(), codec_of(wire)
    for step in range(rounds):
        parts = []
        for rank in range(size):
            rng = np.random.default_rng([step, rank])
            part = (rng.standard_normal(length) * 10.0 ** rng.integers(-3, 4, length)).astype(np.float32)
            parts.append(rounded(codec, part))
        digest.update(rounded(codec, sum_in_rank_order(parts)).tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("size", [4, 2])
def test_the_shared_memory_stage_sums_in_rank_order(size: int, meeting_of) -> None:
    with group(meeting_of("shm", size), size, 3, 4_001, 2, -1) as ranks:
        got = outputs(ranks)
    assert {text.split()[1] for text in got} == {expected_digest(size, 3, 4_001)}


@pytest.mark.parametrize("kind", ["gloo", "horovod"])
def test_a_ring_of_two_sums_in_rank_order_and_fp16_in_two_bytes(kind: str, meeting_of) -> None:
    """Where a + b has only one order. In fp16 what went in and the sum are rounded, whoever sums it."""
    sent = {}
    for item, wire in ((2, "fp16"), (4, "fp32")):
        with group(meeting_of(kind, 2), 2, 3, 4_001, 2, -1, item=item) as ranks:
            got = [text.split() for text in outputs(ranks)]
        assert {words[1] for words in got} == {expected_digest(2, 3, 4_001, wire)}
        sent[item] = sum(int(words[2].removeprefix("sent=")) for words in got)
    assert 2 * sent[2] == sent[4] == 3 * 2 * 4 * 4_001


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_rank_ends_the_others_with_one_sentence(kind: str, meeting_of) -> None:
    with group(meeting_of(kind, 3), 3, 50, 4_001, 2, 5) as ranks:
        texts = [ranks[rank].communicate(timeout=LIMIT)[0] for rank in (0, 1)]
        codes = [process.wait(LIMIT) for process in ranks]
    assert codes == [1, 1, -9]
    assert all(text.startswith("error all-reduce dense.") for text in texts)
    assert all("is gone." in text for text in texts)


def test_shm_leaves_nothing_in_shared_memory(meeting_of) -> None:
    meeting = meeting_of("shm", 2)
    with group(meeting, 2, 5, 1000, 2, 3) as ranks:
        for process in ranks:
            process.communicate(timeout=LIMIT)
        assert not meeting.folder.exists()


def ask(port: int, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_rendezvous_answers_only_who_knows_the_secret(meeting_of) -> None:
    with meeting_of("horovod", 2) as meeting:
        good = f"/{meeting.secret}:{meeting.port}/global/key"
        assert ask(meeting.port, "PUT", good, b"value") == 200
        assert ask(meeting.port, "GET", good) == 200
        for path in ("/global/key", f"/{'0' * 32}:1/global/key", "/", f"/{meeting.secret}:1/global/key/more"):
            assert ask(meeting.port, "GET", path) == 403
        assert ask(meeting.port, "PUT", "/x:1/global/key", b"other") == 403
        assert ask(meeting.port, "DELETE", "/x:1/global/key") == 403
        assert ask(meeting.port, "HEAD", "/") == 403
        assert meeting.refused == 7
        assert ask(meeting.port, "GET", good) == 200


def test_idle_strangers_hold_nobody_up(meeting_of) -> None:
    """Half of them have begun a request. Who knows the secret is answered, and threads are few."""
    with ExitStack() as stack:
        meeting = stack.enter_context(meeting_of("horovod", 2))
        before = threading.active_count()
        for number in range(500):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", meeting.port), timeout=LIMIT))
            if number % 2:
                stranger.sendall(b"GET /sec")
        assert ask(meeting.port, "PUT", f"/{meeting.secret}:{meeting.port}/global/key", b"value") == 200
        assert len(meeting.visitors._deadlines) <= MOST_VISITORS
        assert threading.active_count() - before <= 2 * MOST_VISITORS
        assert ask(meeting.port, "GET", f"/{meeting.secret}:{meeting.port}/global/key") == 200


def test_the_rendezvous_listens_on_one_address_only(meeting_of) -> None:
    with meeting_of("horovod", 2) as meeting:
        listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
        mine = {line.split()[1] for line in listening if line.split()[1].endswith(f":{meeting.port:04X}")}
        assert {entry.split(":")[0] for entry in mine} == {"0100007F"}
        assert meeting.environment(0)["HOROVOD_GLOO_IFACE"] == interface_of("127.0.0.1")


def test_two_meetings_share_neither_port_nor_secret_nor_file(meeting_of) -> None:
    with meeting_of("horovod", 2) as one, meeting_of("horovod", 2) as two:
        assert one.port != two.port
        assert one.secret != two.secret
    with meeting_of("gloo", 2) as one, meeting_of("gloo", 2) as two:
        assert one.path != two.path
        assert one.secret != two.secret
        assert one.path.parent.stat().st_mode & 0o077 == 0


def test_an_address_of_another_machine_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"203\.0\.113\.7 is no address of this machine"):
        open_rendezvous("gloo", 2, tmp_path, bind="203.0.113.7")


def test_without_horovod_the_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("horovod")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "horovod", None)
    from gbactl.errors import MissingDependencyError

    with pytest.raises(MissingDependencyError, match=r"make install.*gbactl\[horovod\].*collective=gloo"):
        open_rendezvous("horovod", 2, tmp_path)
