"""Worker: takes batches, pulls parameters, computes gradients, pushes them."""
