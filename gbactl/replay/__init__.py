"""Replay of a run's steps from its event log, with the same policy, shards and gradient computation.

The log decides which worker pulled which version of which shard; nothing else of a run's timing affects its bits. A
replay takes one process, the run's arithmetic, and the memory of one model plus the gradients in flight.
"""
