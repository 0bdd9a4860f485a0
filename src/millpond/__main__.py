"""`python -m millpond` is the command line."""

from __future__ import annotations

from millpond.faces.cli import main

if __name__ == "__main__":
    main()
