"""The one exception type a user is meant to see."""


class UserError(Exception):
    """A mistake in the user's input, files or configuration.

    The message is a single line that says what was found, what was expected and what to do.
    Command lines print it on stderr and exit with status 2, without a traceback.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(" ".join(message.split())))


def printable(text: str, limit: int = 2000) -> str:
    """``text`` as one that moves no cursor and rings no bell: what files say reaches terminals through it.

    Args:
        text: of any origin.
        limit: characters that are kept.
    """
    text = text if len(text) <= limit else f"{text[:limit]}..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
