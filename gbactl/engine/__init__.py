"""Where the processes of a run are: NAME.py is the place `cluster=NAME`; base.py starts processes on this host.

For `cluster=hosts` the launcher starts one agent a host over ssh (`ssh_command.py`: Horovod's own way of building that
command), and talks to it over ssh's standard input and output (`agent_protocol.py`: length-checked msgpack). An agent
(`agent.py`) starts, kills and reports the processes of its host; coordinator and event log stay with the launcher.
Whoever hears nothing from the other end for `cluster.hang_seconds` takes it for gone: a host that is cut off ends by
itself.
"""
