"""Child processes of a run: coordinator, server or worker, as a bootstrap document describes."""
