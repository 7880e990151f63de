"""The machine's load, under MLflow's names."""

from __future__ import annotations

import mlflow.system_metrics.metrics.cpu_monitor as cpu_monitor
import mlflow.system_metrics.metrics.network_monitor as network_monitor

from gbactl.tracking.system_metrics import SystemMetrics


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
