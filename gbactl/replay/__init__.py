"""Replay: a run's steps again from its event log, with the real policy, the real shards and real gradients.

What the log holds decides who pulled which version of what; nothing else of a run's timing enters its bits. A
replay costs one process the run's arithmetic, and the memory of one model plus what was in flight.
"""
