"""Secrets in addresses: users and passwords, and queries, which may sign or authorise."""

import re

_ADDRESS = re.compile(r"[^\s\"'<>]*[^\s\"'<>.,;:)\]}]")
"""What follows the `://` of an address, without the punctuation of the sentence around it."""


def without_secrets(text: str) -> str:
    """A text in which `***` replaces the users and queries of its addresses.

    >>> without_secrets("fetching https://me:word@host/a.zip?sig=ab+cd; it fails")
    'fetching https://***@host/a.zip?***; it fails'
    """
    first, *others = text.split("://")
    return "://".join([first, *map(_shown, others)])


def _shown(after: str) -> str:
    """The text after `://`, whose beginning is the rest of an address."""
    found = _ADDRESS.match(after)
    if found is None:
        return after
    address = found[0]
    host, _, path = address.partition("/")
    # A password may have a slash, or an @, of its own.
    if "@" in host or ("@" in path and ":" in host and not host.rpartition(":")[2].isdigit()):
        address = f"***@{address.rpartition('@')[2]}"
    place, hash_sign, fragment = address.partition("#")
    return re.sub(r"\?.+", "?***", place) + hash_sign + fragment + after[found.end() :]
