"""Engine of `cluster=ray`: real processes on the nodes of the Ray cluster that this machine belongs to.

`python -m gbactl.engine.ray NODE CPUS OTHERS COMMAND` is the command for one host: a driver of Ray that reserves CPUs
of the node with an actor. If the node is dead, the actor takes the CPUs of any other node that is no host of the run,
and if there is none, Ray's autoscaler sees what is missing. The actor does nothing but start the agent, which dials
back to the driver, encrypted under a key that Ray's channel carries. The driver passes the agent's bytes on. It ends
with the actor, which Ray reports dead when the node is. No placement group is used: it would reserve all its places at
once, on nodes of Ray's choice, whereas each host is chosen by its name, and replaced alone. Of gbactl's processes only
the drivers, and the one that lists the nodes, import Ray; none imports the package grpc.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import select
import signal
import subprocess
import sys
import threading
from shlex import quote
from typing import Any, ClassVar

from gbactl.config.groups import ClusterConfig
from gbactl.engine.host_placement import hosts_of
from gbactl.engine.hosts import HostsEngine
from gbactl.errors import ClusterError, ConfigError, GbactlError, MissingDependencyError, WireError, first_line

NODES_SECONDS, KNOCK_SECONDS, FREE_SECONDS = 60.0, 5.0, 10.0
START = "type `ray start --head` here and `ray start --address=HEAD:6379` on the others, or use `ray job submit`"


class RayEngine(HostsEngine):
    """Engine whose agents are started by Ray, one a node. cluster.hosts, if given, chooses among the nodes."""

    not_resumed: ClassVar[tuple[str, ...]] = ("hosts", "bind")  # the cluster may have other nodes by then
    replaces_hosts: ClassVar[bool] = True
    signs: ClassVar[tuple[str, ...]] = ("RAY_JOB_CONFIG_JSON_ENV_VAR",)
    surroundings: ClassVar[str] = "a Ray job"

    def hosts(self) -> list[str]:
        """Return the live nodes of the Ray cluster that have CPUs, as NAME:CPUS.

        A process apart asks Ray, which stays out of the launcher. Raises MissingDependencyError or ConfigError."""
        _require_ray()
        ask = [sys.executable, "-m", __name__]
        try:
            asked = subprocess.run(ask, capture_output=True, text=True, timeout=NODES_SECONDS)
        except subprocess.TimeoutExpired:
            why = f"Ray did not name its nodes within {NODES_SECONDS:.0f} s; check its head node."
            raise ConfigError(why) from None
        if asked.returncode:
            raise ConfigError((asked.stderr.strip().splitlines() or ["Ray did not name its nodes."])[-1])
        return asked.stdout.split()

    def agent(self, cluster: ClusterConfig, host: str) -> str:
        from gbactl.engine.agent_connection import agent_command

        _require_ray()
        slots = {each.name: each.slots for each in hosts_of(cluster.hosts)}
        cpus, others = slots.pop(host), quote(",".join(slots))
        return f"{quote(sys.executable)} -m {__name__} {quote(host)} {cpus} {others} {agent_command(cluster.python)}"


ENGINE = RayEngine()


def _require_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise MissingDependencyError("cluster=ray needs Ray, which is not installed; type pip install 'gbactl[ray]'.")


# -- the process that imports Ray ---------------------------------------------------------------------


def _connect() -> Any:
    """Connect to the running Ray cluster; returns the module ray. Raises ClusterError."""
    ray = importlib.import_module("ray")
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise ClusterError(f"cluster=ray found no running Ray cluster; {START}.") from error
    except Exception as error:  # another version of Ray or Python: RuntimeError; and what a dying head causes
        raise ClusterError(f"Ray cannot be used: {first_line(error)}") from error
    return ray


def _live(ray: Any) -> dict[str, tuple[str, int]]:
    """Return (id, number of CPUs) of every live node by name, which is its address unless it was given another."""
    found = [each for each in ray.nodes() if each["Alive"]]
    return {each["NodeName"]: (each["NodeID"], int(each["Resources"].get("CPU", 0))) for each in found}


class Starter:
    """Actor on a node: starts an agent and waits for its end. Ray copies it to the node, without gbactl's modules."""

    def run(self, command: list[str], folder: str, key: str) -> str:
        """Run an agent, which reads its connection key on standard input. Returns why it failed; "" if it did not."""
        cwd = folder if os.path.isdir(folder) else None
        try:
            done = subprocess.run(command, input=f"{key}\n", cwd=cwd, stderr=subprocess.PIPE, text=True)
        except OSError as error:
            return str(error)
        lines = done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"]
        return lines[-1] if done.returncode else ""


def _place(ray: Any, name: str, cpus: int, others: list[str]) -> dict[str, Any]:
    """Return Ray's options that place an actor on node `name` or, if that is dead, on a node not among `others`.

    Raises ClusterError if Ray never had a node of that name."""
    live = _live(ray)
    if name in live:
        node, total = live[name]
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return {"num_cpus": min(cpus, total), "scheduling_strategy": affinity}
    if all(each["NodeName"] != name for each in ray.nodes()):
        raise ClusterError(f"Ray has no node {name}, but {', '.join(sorted(live))}")
    taken = [live[other][0] for other in others if other in live]
    return {"num_cpus": cpus, "label_selector": {"ray.io/node-id": f"!in({','.join(taken)})"} if taken else {}}


def _reason(error: Exception) -> str:
    """Return what has failed and why: the first and the last line of Ray's text, which may end with a traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return " ".join(dict.fromkeys([lines[0], lines[-1].strip()]))


def run_agent(name: str, cpus: int, others: list[str], command: list[str], out: int) -> None:
    """Start an agent on a node, and relay its input and output until it ends. Raises ClusterError."""
    from gbactl.wire.auth import TlsConnection, TlsContexts, new_key, relay
    from gbactl.wire.listener import address_of, listen

    ray = _connect()
    key, listener = new_key(), listen(ray.util.get_node_ip_address())
    actor = ray.remote(Starter).options(**_place(ray, name, cpus, others)).remote()
    call = actor.run.remote([*command, address_of(listener)], os.getcwd(), key.hex())

    def watch() -> None:
        """End this process when Ray reports the actor dead, or the agent has failed."""
        try:
            why = ray.get(call)
        except Exception as error:
            why = f"Ray does not run the agent: {_reason(error)}"
        if why:
            print(f"Node {name}: {why}", file=sys.stderr, flush=True)
            os._exit(1)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    contexts = TlsContexts(key)
    connection: TlsConnection | None = None
    launcher = select.poll()
    launcher.register(0, 0)  # reports only the end of the pipe
    listener.settimeout(FREE_SECONDS)
    while connection is None:
        try:
            knocking, _ = listener.accept()
        except TimeoutError:
            if launcher.poll(0) or not watching.is_alive():  # the launcher, or the command, has ended
                return
            print(f"Ray has not yet given {cpus} CPUs of node {name}; see `ray status`.", file=sys.stderr, flush=True)
            continue
        knocking.settimeout(KNOCK_SECONDS)
        with contextlib.suppress(OSError, WireError):  # a stranger
            answered = contexts.accept(knocking)
            answered.do_handshake()
            connection = answered
    listener.close()
    for number in (signal.SIGINT, signal.SIGTERM):  # `ray job stop` sends one to all processes of a job: the launcher
        signal.signal(number, signal.SIG_IGN)  # saves the run first, and then ends this process
    relay(connection, 0, out)


def main() -> int:
    """List the nodes on standard output or, with arguments, run the agent of one; returns the exit code."""
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        if sys.argv[1:]:
            run_agent(sys.argv[1], int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:], out)
        else:
            nodes = sorted(_live(_connect()).items())
            os.write(out, " ".join(f"{name}:{cpus}" for name, (_, cpus) in nodes if cpus).encode())
    except GbactlError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
