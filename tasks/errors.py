"""The error a user can mend."""


class UserError(ValueError):
    """Something the user gave is wrong; the message names the file or key, the value and the fix.

    The command line prints it as one line and exits with status 1, without a traceback.
    """
