"""The life of a child process: from its bootstrap document to the coordinator, server or worker that it becomes."""
