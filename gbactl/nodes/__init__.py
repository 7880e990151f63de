"""Child processes of a run: coordinator, server or worker, as a start-up document describes."""
