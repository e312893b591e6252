"""The command `sottovoce`, also `python -m sottovoce`."""

import signal


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command handles it: no traceback of imports
    from sottovoce.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
