"""Installation of a checkout: the virtual environment, the libraries, Horovod. Standard library only."""
