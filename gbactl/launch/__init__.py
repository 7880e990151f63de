"""Launcher of a run: it prepares the data, starts and watches the processes, logs to MLflow and writes the result."""
