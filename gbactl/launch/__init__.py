"""The launcher: prepares the data, starts the processes, watches them, tells MLflow, writes the result."""
