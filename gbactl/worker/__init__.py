"""Worker: requests batches, pulls parameters, computes gradients and pushes them."""
