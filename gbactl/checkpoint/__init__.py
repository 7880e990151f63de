"""Checkpoints: costs of saving and recovery, choice of rows to save first, file format, and restoring a job.

Following the idea of CPR: saving continues beside training, and a lost server alone goes back to what was saved.
"""
