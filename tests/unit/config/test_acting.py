"""Keys that act in a run, and those that do not."""

from __future__ import annotations

from gbactl.config import RunConfig, from_dict, to_dict
from gbactl.config.acting import acting, when


def test_keys_that_do_not_act_are_left_out() -> None:
    whole = to_dict(RunConfig())
    found = acting(whole)
    assert found["checkpoint"] == {"name": "none"} and found["cost"] == {"name": "laptop"}
    assert "hosts" not in found["cluster"] and "every" not in found["switch"] and found["optim"] == whole["optim"]
    used = {"cluster": {"name": "virtual", "workers": 2}, "checkpoint": {"name": "full"}, "switch": {"name": "auto"}}
    config = to_dict(from_dict(used))
    assert acting(config)["cost"] == config["cost"] and acting(config)["checkpoint"] == config["checkpoint"]
    assert "every" in acting(config)["switch"]
    assert when("seed") == when("cost.name") == "in every run" and when("cluster.ssh") == "with cluster=hosts"
