"""`python -m mailpipe` and the command `mailpipe`."""

from mailpipe.cli import main

if __name__ == "__main__":
    main()
