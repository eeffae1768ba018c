"""Secrets in addresses: passwords, tokens and signatures, which no output, file or message may show."""

import re

_USER = re.compile(r"(?<=://)[^\s/'\"]*@")
_QUERY = re.compile(
    r"(?<=[?&;])([^\s=&;'\"]*(?:auth|code|cred|key|pass|pwd|secret|session|sig|token)[^\s=&;'\"]*)=[^\s&;'\"\\]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """A text with `***` in place of the users of addresses, and of values of queries that sign or authorise.

    >>> without_secrets("fetching https://me:word@host/a.zip?part=1&sig=ab+cd")
    'fetching https://***@host/a.zip?part=1&sig=***'
    """
    return _QUERY.sub(r"\1=***", _USER.sub("***@", text))
