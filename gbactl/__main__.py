"""`python -m gbactl` is the `gbactl` command."""

from gbactl.cli import main

if __name__ == "__main__":
    main()
