"""The groups of a run's metrics in MLflow, as docs/how-to/compare-in-mlflow.md lists them."""

FIVE = ("auc", "logloss", "loss", "eps", "staleness")
GROUPS = ("train", "eval", "staleness", "system", "wire", "recovery", "rounds", "advise", "replay")


def is_grouped(name: str) -> bool:
    """Whether a metric is in a group, or one of the five without one."""
    return name in FIVE or ("/" in name and name.partition("/")[0] in GROUPS)
