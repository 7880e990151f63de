"""Engines, which place and run the processes of a run: NAME.py is `cluster=NAME`.

On several hosts the launcher starts one agent a host by one command (ssh for `cluster=hosts`, srun for `cluster=slurm`,
the user's for `cluster=exec`, a driver of Ray for `cluster=ray`), and talks to it over that command's standard input
and output (length-checked msgpack, `agent_connection.py`).
An agent (`agent.py`) starts, kills and reports the processes of its host; coordinator and event log stay with the
launcher.
Launcher and agent each take the other end as failed after `cluster.hang_seconds` of silence; the processes of a host
that is cut off are then ended by its agent.
"""
