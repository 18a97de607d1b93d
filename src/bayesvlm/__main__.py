"""`python -m bayesvlm`: the command line, where the `bayesvlm` script is not on the path."""

from bayesvlm.cli import main

if __name__ == "__main__":
    main()
