"""MLflow tracking, used by the launcher alone; importing this package does not import mlflow, which takes 1 s."""
