"""``python -m fedsyn_flwr.cli``: the ``fedsyn`` command."""

from fedsyn_flwr.cli.app import main

if __name__ == "__main__":
    main()
