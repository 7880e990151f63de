"""cluster=exec: the command that is made of the user's, and commands that lack a placeholder."""

from __future__ import annotations

import pytest

from gbactl.config.engine_interface import engine_named
from gbactl.engine.hosts import HostsEngine
from gbactl.errors import ConfigError
from gbactl.launch.hydra_config import compose

KEYS = ["cluster=exec", "cluster.hosts=[pod-0:2,pod-1:2]", "mode=gba", "train.global_batch=64"]


def test_the_command_has_the_host_and_the_agent_in_their_places() -> None:
    cfg = compose([*KEYS, "cluster.exec='kubectl exec -i {host} -- sh -c \"exec {agent}\"'", "cluster.python=python3"])
    engine = engine_named("exec")
    assert isinstance(engine, HostsEngine) and cfg.cluster.workers == 4
    told = engine.agent(cfg.cluster, "pod-1")
    assert told == 'kubectl exec -i pod-1 -- sh -c "exec python3 -m gbactl.engine.agent"'


@pytest.mark.parametrize(("typed", "lacks"), [("''", "{host} and {agent}"), ("'ssh {host}'", "{agent}")])
def test_a_command_without_its_placeholders(typed: str, lacks: str) -> None:
    with pytest.raises(ConfigError, match=f"cluster.exec lacks {lacks}; type for instance cluster.exec='kubectl exec"):
        compose([*KEYS, f"cluster.exec={typed}"])
