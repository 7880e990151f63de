"""Network namespaces as hosts: a launcher's and some more, each with an sshd, on one bridge that has its own.

A host sees the files of this machine but for some folders, in whose place it has empty ones, and its own /dev/shm and
/run: an sshd refuses everybody while it has no /run/sshd, so a shared one must not go with the hosts of another test.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import gbactl
from tests.support.processes import alive, wait_for
from tests.support.relay import Relay

LAUNCHER = "l"
SSHD = Path("/usr/sbin/sshd")
OWN_FOLDERS = ("/dev/shm", "/run")
RUN_SSHD = Path("/run/sshd")
NAMESPACES = Path("/run/netns")
BURST_SECONDS = 2e-3
MOST_AT_ONCE = 128 << 10  # the kernel hands over up to 64 KiB in one piece; what is larger than a burst it would cut up


def obstacle() -> str | None:
    """Why there can be no such hosts here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or not SSHD.exists():
        return "network namespaces as hosts need the Debian packages iproute2 and openssh-server"
    name = f"gbt{os.getpid()}probe"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return "this machine does not allow network namespaces"
    subprocess.run(["ip", "netns", "del", name], check=True)
    return None


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """`names`: of the hosts; `hidden`: folders that they do not share with the launcher; `named`: a host
    knows its own address by its name; `cores`: the one that a host keeps to; `delays`: seconds that a frame to a host
    or from it waits on its wire (see relay.py), so two hosts are the sum of theirs apart, one way; `losses`: the share
    of such frames that is lost."""

    port = 22  # of every sshd

    def __init__(
        self, folder: Path, names: Sequence[str], hidden: Sequence[Path] = (), named: bool = True,
        cores: Mapping[str, int] | None = None, delays: Mapping[str, float] | None = None,
        losses: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.names, self.hidden, self.named = folder, tuple(names), tuple(hidden), named
        self.cores, self.delays, self.losses = cores or {}, delays or {}, losses or {}
        self.relays: dict[str, Relay] = {}
        self._prefix = f"gbt{os.getpid()}"
        self._started: list[subprocess.Popen[bytes]] = []

    def ns(self, name: str) -> str:
        """The namespace of a host."""
        return f"{self._prefix}{name}"

    def address(self, name: str) -> str:
        """Of a host."""
        return f"10.77.0.{2 + (*self.names, LAUNCHER).index(name)}"

    def inside(self, name: str) -> tuple[str, ...]:
        """What to put before a command that is to run on a host."""
        return ("ip", "netns", "exec", self.ns(name))

    @property
    def ssh(self) -> str:
        """cluster.ssh="""
        return f"ssh -F {self.folder / 'ssh_config'}"

    # -- up and down --------------------------------------------------------------------------------

    def build(self) -> None:
        """Everything, until every sshd answers."""
        sweep()
        self._keys()
        _ip("netns", "add", self.ns("sw"))
        _ip("-n", self.ns("sw"), "link", "add", "bridge", "type", "bridge")
        _ip("-n", self.ns("sw"), "link", "set", "bridge", "up")
        for name in (*self.names, LAUNCHER):
            self._host(name)
        for name in self.names:
            self._serve(name)
        for name in self.names:
            wait_for(lambda name=name: self.answers(name), 20)

    def _host(self, name: str) -> None:
        _ip("netns", "add", self.ns(name))
        relayed = name in self.delays or name in self.losses
        end = f"far-{name}" if relayed else f"to-{name}"
        peer = ("peer", "name", end, "netns", self.ns("sw"))
        _ip("link", "add", "eth0", "netns", self.ns(name), "type", "veth", *peer)
        if relayed:
            self._lengthen(name)
        _ip("-n", self.ns("sw"), "link", "set", f"to-{name}", "master", "bridge", "up")
        _ip("-n", self.ns(name), "address", "add", f"{self.address(name)}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", self.ns(name), "link", "set", device, "up")

    def _lengthen(self, name: str) -> None:
        """A host's wire ends at far-NAME; a relay is between that and near-NAME, the other end of the bridge's port."""
        near, far = f"near-{name}", f"far-{name}"
        _ip("-n", self.ns("sw"), "link", "add", f"to-{name}", "type", "veth", "peer", "name", near)
        for device in (near, far):
            _ip("-n", self.ns("sw"), "link", "set", device, "up")
        wait, loss = self.delays.get(name, 0.0), self.losses.get(name, 0.0)
        self.relays[name] = Relay(self.folder, self.inside("sw"), (near, far), wait, loss)

    def _keys(self) -> None:
        for key in ("host_key", "user_key"):
            made = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key)]
            subprocess.run(made, check=True)
        shutil.copy(self.folder / "user_key.pub", self.folder / "authorized")
        public = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        (self.folder / "known").write_text(f"any {public}\n")
        names = [f"Host {name}\n  HostName {self.address(name)}\n" for name in self.names]
        (self.folder / "ssh_config").write_text(
            "".join(names)
            + f"Host *\n  User {pwd.getpwuid(os.getuid()).pw_name}\n  Port {self.port}\n  HostKeyAlias any\n"
            f"  IdentityFile {self.folder / 'user_key'}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder / 'known'}\n  GlobalKnownHostsFile /dev/null\n"
            "  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 10\n  LogLevel ERROR\n"
        )

    def _configure_sshd(self, name: str) -> Path:
        config = self.folder / f"sshd_{name}"
        config.write_text(
            f"ListenAddress {self.address(name)}:{self.port}\n"
            f"HostKey {self.folder / 'host_key'}\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder / 'authorized'}\nPermitRootLogin prohibit-password\nStrictModes no\n"
            "PasswordAuthentication no\nLogLevel ERROR\n"
            f"SetEnv PYTHONPATH={Path(gbactl.__file__).parents[1]}\n"  # this checkout, as in processes.environment
        )
        return config

    def _serve(self, name: str) -> None:
        config = self._configure_sshd(name)
        core = f"taskset -c {self.cores[name]} " if name in self.cores else ""
        self._begin(name, f"mkdir -m 755 {RUN_SSHD} && exec {core}{SSHD} -D -e -f {config}")

    def _begin(self, name: str, program: str, *before: str) -> None:
        """Start a host's first process, among the host's own mounts; `before`: a command that starts a shell."""
        own = "".join(f"mount -t tmpfs tmpfs {folder} && " for folder in (*OWN_FOLDERS, *self.hidden))
        if self.named:
            names = self.folder / f"hosts_{name}"
            names.write_text(f"127.0.0.1 localhost\n{self.address(name)} {socket.gethostname()}\n")
            own += f"mount --bind {names} /etc/hosts && "
        with (self.folder / f"first_{name}.log").open("wb") as log:
            started = [*self.inside(name), *before, "sh", "-c", f"{own}{program}"]
            self._started.append(subprocess.Popen(started, stdout=log, stderr=log, start_new_session=True))

    def answers(self, name: str) -> bool:
        """Whether a command from the launcher runs on a host."""
        done = subprocess.run(
            [*self.inside(LAUNCHER), *self.ssh.split(), name, "true"], stdin=subprocess.DEVNULL, capture_output=True
        )
        return done.returncode == 0

    def end(self) -> None:
        """Nothing is left, whatever happened."""
        for relay in self.relays.values():
            relay.end()
        for name in (*self.names, LAUNCHER, "sw"):
            if (NAMESPACES / self.ns(name)).exists():
                _remove(self.ns(name))
        for process in self._started:
            process.kill()
            process.wait()

    # -- what happens to hosts ----------------------------------------------------------------------

    def cut(self, name: str) -> None:
        """Nothing goes to a host or comes from it any more."""
        _ip("-n", self.ns("sw"), "link", "set", f"to-{name}", "down")

    def mend(self, name: str) -> None:
        """It does again."""
        _ip("-n", self.ns("sw"), "link", "set", f"to-{name}", "up")

    def separate(self, one: str, other: str) -> None:
        """Two hosts do not reach each other."""
        for here, there in ((one, other), (other, one)):
            _ip("-n", self.ns(here), "route", "add", "unreachable", f"{self.address(there)}/32")

    def limit(self, name: str, rate: str) -> None:
        """No more than `rate` (as tc writes it) goes to a host, and as much comes from it."""
        for ns, device in ((self.ns("sw"), f"to-{name}"), (self.ns(name), "eth0")):
            shaped = ["tc", "-n", ns, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate]
            subprocess.run([*shaped, "burst", _burst(rate), "latency", "50ms"], check=True, capture_output=True)

    def congestion(self, control: str) -> None:
        """What every host does about congestion; by its route, as a namespace may not have every kind for its own."""
        for name in (*self.names, LAUNCHER):
            here = ("dev", "eth0", "proto", "kernel", "scope", "link", "src", self.address(name))
            _ip("-n", self.ns(name), "route", "replace", "10.77.0.0/24", *here, "congctl", control)

    def kill(self, name: str) -> None:
        """A host disappears: nobody hears of its end."""
        self.cut(name)
        for pid in self.pids(name):
            _kill(pid)

    def pids(self, name: str) -> list[int]:
        """The processes of a host."""
        return _pids(self.ns(name))

    def ours(self, name: str) -> list[str]:
        """Command lines of a host's processes that are gbactl's."""
        found = []
        for pid in self.pids(name):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if "-m gbactl." in line and "sh -c" not in line:
                found.append(line.strip())
        return found


class Loopback(Hosts):
    """Such hosts for a user who is not root: names of this machine, for which one sshd of the user's answers."""

    def address(self, name: str) -> str:
        return "127.0.0.1"

    def inside(self, name: str) -> tuple[str, ...]:
        return ()

    def build(self) -> None:
        with socket.create_server((self.address(""), 0)) as free:
            self.port = free.getsockname()[1]
        self._keys()
        with (self.folder / "sshd.log").open("wb") as log:
            started = [SSHD, "-D", "-e", "-f", self._configure_sshd("all")]
            self._started.append(subprocess.Popen(started, stdout=log, stderr=log, start_new_session=True))
        wait_for(lambda: self.answers(self.names[0]), 20)


class Containers(Hosts):
    """Such hosts with process numbers and monotonic clocks of their own and no sshd.

    `reach HOST COMMAND` runs a command there."""

    def _keys(self) -> None:
        enter = f'exec nsenter -t "$(cat {self.folder}/pid-$host)" --net --mount --pid --time "$@"'
        self.reach.write_text(f"#!/bin/sh\nhost=$1\nshift\n{enter}\n")
        self.reach.chmod(0o755)

    @property
    def reach(self) -> Path:
        """The command that reaches a host, as docker exec or kubectl exec does."""
        return self.folder / "reach"

    def _serve(self, name: str) -> None:
        later = str(100_000 * (1 + self.names.index(name)))
        self._begin(
            name, "exec sleep infinity", "unshare", "--pid", "--time", "--monotonic", later, "--fork", "--mount-proc"
        )

    def restart(self, name: str) -> None:
        """A killed host is there again, with nothing of what it had."""
        self.mend(name)
        self._serve(name)
        wait_for(lambda: self.answers(name), 20)

    def answers(self, name: str) -> bool:
        found = [pid for pid in self.pids(name) if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
        (self.folder / f"pid-{name}").write_text(" ".join(map(str, found)))
        return bool(found)


def _burst(rate: str) -> str:
    """What may go at once after a pause: 2 ms of the rate, and no less than the kernel hands over twice."""
    number, unit = re.fullmatch(r"(\d+)([kmg]?)bit", rate).groups()  # type: ignore[union-attr]
    bytes_a_second = int(number) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[unit] / 8
    return f"{max(MOST_AT_ONCE, int(bytes_a_second * BURST_SECONDS))}b"


def _pids(ns: str) -> list[int]:
    done = subprocess.run(["ip", "netns", "pids", ns], capture_output=True, text=True)
    return [pid for pid in map(int, done.stdout.split()) if alive(pid)]


def _remove(ns: str) -> None:
    """Kill what runs in a namespace, and delete it."""
    for pid in _pids(ns):
        _kill(pid)
    deadline = time.monotonic() + 10
    while _pids(ns) and time.monotonic() < deadline:
        time.sleep(0.02)
    subprocess.run(["ip", "netns", "del", ns], capture_output=True)


def sweep() -> None:
    """Remove what somebody who was killed has left."""
    for path in NAMESPACES.glob("gbt*"):
        owner = re.fullmatch(r"gbt(\d+)[a-z]+", path.name)
        if owner is not None and not alive(int(owner[1])):
            _remove(path.name)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


H = TypeVar("H", bound=Hosts)


@contextlib.contextmanager
def hosts(
    folder: Path, names: Sequence[str], hidden: Sequence[Path] = (), named: bool = True,
    cores: Mapping[str, int] | None = None, delays: Mapping[str, float] | None = None,
    losses: Mapping[str, float] | None = None, kind: type[H] = Hosts,
) -> Iterator[H]:  # fmt: skip
    """Such hosts for a while."""
    made = kind(folder, names, hidden, named, cores, delays, losses)
    try:
        made.build()
        yield made
    finally:
        made.end()
