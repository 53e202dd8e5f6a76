"""`python -m konsil`: the command."""

from konsil.cli import main

if __name__ == "__main__":
    main()
