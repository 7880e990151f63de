"""Child processes of a run: from the bootstrap document to the coordinator, server or worker that it describes."""
