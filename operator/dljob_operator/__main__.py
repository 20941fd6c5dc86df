"""`python -m dljob_operator`."""

from dljob_operator.command import main

if __name__ == "__main__":
    main()
