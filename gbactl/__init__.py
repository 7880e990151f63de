"""gbactl: which distributed training mode, on this cluster, and what happens to AUC."""

__version__ = "0.1.0"
