"""gbactl: train CTR models in several distributed modes, and find which mode suits this cluster at which AUC."""

__version__ = "0.1.0"
