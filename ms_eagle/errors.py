"""The one exception type a user is meant to see."""


class UserError(Exception):
    """A mistake in the user's input, files or configuration.

    The message is a single line that says what was found, what was expected and what to do.
    Command lines print it on stderr and exit with status 2, without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
