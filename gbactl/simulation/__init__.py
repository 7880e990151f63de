"""Virtual engine: the real coordinator, servers and gradients on a discrete-event clock, in one process."""
