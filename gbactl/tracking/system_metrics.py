"""Load of this machine while a run goes on, under the names that MLflow's own monitor gives to system metrics."""

from __future__ import annotations

import psutil


class SystemMetrics:
    """Measurements of the whole machine; network traffic counts from the first one on. A measurement takes 0.2 ms."""

    def __init__(self) -> None:
        psutil.cpu_percent()  # the first value is of no interval
        self._network = _network()

    def measure(self) -> dict[str, float]:
        """Return the use of processors since the last call, of memory now, and the network traffic."""
        memory, network = psutil.virtual_memory(), _network()
        return {
            "system/cpu_utilization_percentage": psutil.cpu_percent(),
            "system/system_memory_usage_megabytes": memory.used / 1e6,
            "system/system_memory_usage_percentage": 100 * memory.used / memory.total,
            "system/network_receive_megabytes": (network[0] - self._network[0]) / 1e6,
            "system/network_transmit_megabytes": (network[1] - self._network[1]) / 1e6,
        }


def _network() -> tuple[int, int]:
    """Return the bytes that the machine has received and sent; zeros where it has no network interface."""
    found = psutil.net_io_counters()
    return (0, 0) if found is None else (found.bytes_recv, found.bytes_sent)
