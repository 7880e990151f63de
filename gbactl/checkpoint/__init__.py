"""Checkpoints: what saving and recovering cost, which rows come first, files that are whole or not there, and how a
job goes on from one.

Following the idea of CPR: saving goes on beside training, and a lost server alone goes back to what was saved.
"""
