"""MLflow tracking, used by the launcher alone. Importing this package does not import mlflow (1 s)."""
