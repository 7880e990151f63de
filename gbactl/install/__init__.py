"""Setting a machine up: the virtual environment, the libraries, Horovod. Standard library only."""
