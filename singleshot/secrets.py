"""Secrets in addresses: passwords, tokens and signatures, which no output, file or message may show."""

import re

_USER = re.compile(r"(?<!///)(?<=//)(?:[^\s/'\"@]*|[^\s/:@'\"]*:(?!\d+/)(?:(?!\"[,:}\]])\S)*)@")
"""A user, with a password that may hold any character but blanks: it ends at the last @ of the address, which
ends where a string of JSON does."""
_SECRET = "auth|bearer|code|cred|hmac|jwt|key|otp|pass|policy|pwd|secret|session|sig|ticket|token"
_PART = r"(?:(?!%3d)[^\s=&;'\"])*?"
"""Part of a name. Its = and the separator before it are percent-encoded in ODBC's addresses."""
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|(?:(?!%3b|%26)[^\s&;'\"\\])+)"
_QUERY = re.compile(
    rf"((?:[?&;#]|%3b|%3f|%26|%23){_PART}(?:{_SECRET}){_PART}(?:=|%3d)){_VALUE}",
    re.IGNORECASE,
)
_WORD = re.compile(rf"(\b(?:passw(?:or)?d|pwd)=){_VALUE}", re.IGNORECASE)
"""A setting among words, as in PostgreSQL's `host=h user=u password=p`."""


def without_secrets(text: str) -> str:
    """A text with `***` in place of the users of addresses, and of values of queries that sign or authorise.

    >>> without_secrets("fetching https://me:word@host/a.zip?part=1&sig=ab+cd")
    'fetching https://***@host/a.zip?part=1&sig=***'
    """
    for pattern in (_QUERY, _WORD):
        text = pattern.sub(r"\1***", text)
    return _USER.sub("***@", text)


def address_without_secrets(address: str) -> str:
    """As :func:`without_secrets`, for a text that is one address: its password may also hold blanks."""
    return without_secrets(re.sub(r"(?<=//)[^/:@]+:.*@", "***@", address, flags=re.DOTALL))
