"""``python -m evertick`` is the program ``evertick``."""

from evertick.cli import main

if __name__ == "__main__":
    main()
