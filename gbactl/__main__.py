"""Entry point of `python -m gbactl`, the same as the `gbactl` command."""

from gbactl.cli import main

if __name__ == "__main__":
    main()
