"""``python -m stochbatch`` is the command ``stochbatch``."""

from stochbatch.cli import main

if __name__ == "__main__":
    main()
