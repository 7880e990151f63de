"""The machine's load, under MLflow's names."""

from __future__ import annotations

import mlflow.system_metrics.metrics.cpu_monitor as cpu_monitor
import mlflow.system_metrics.metrics.network_monitor as network_monitor
import pytest

from gbactl.tracking.system_metrics import SystemMetrics


def test_a_machine_without_a_network_interface_has_no_traffic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.net_io_counters", lambda: None)
    assert SystemMetrics().measure()["system/network_receive_megabytes"] == 0


def test_the_names_are_mlflows() -> None:
    own = {}
    for monitor in (cpu_monitor.CPUMonitor(), network_monitor.NetworkMonitor()):
        monitor.collect_metrics()
        own |= monitor.aggregate_metrics()
    found = SystemMetrics().measure()
    assert set(found) == {f"system/{name}" for name in own}
    assert 0 <= found["system/cpu_utilization_percentage"] <= 100
    assert 0 < found["system/system_memory_usage_percentage"] < 100
    assert found["system/network_receive_megabytes"] >= 0
