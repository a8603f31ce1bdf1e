"""The error of every subcommand for input that it cannot use."""


class Usage(Exception):
    """Shown as one line; the exit status is 2."""

    def __init__(self, message: object) -> None:
        super().__init__(" ".join(str(message).split()))
