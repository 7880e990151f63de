"""Comparison of runs: read from MLflow, aggregated over seeds, rendered as text, markup or plots."""
