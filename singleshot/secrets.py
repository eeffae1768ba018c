"""Secrets in texts: passwords, tokens and signatures, which no output, file or message may show.

The time is proportional to the text's length, whatever the text: each run of characters is matched once, from
its beginning, without backtracking.
"""

import re

_NAMED = re.compile(
    r"(?<![\w.+\[\]-])(?P<name>[\w.+\[\]-]++)(?P<sign>=|%3d|[\"']?[ \t]*+[:=][ \t]*+|[ \t]++)", re.IGNORECASE
)
"""A name with what follows it before its value: in a query, a setting, JSON, a header or an option."""
_ENCODED = ("3b", "3f", "26", "23")
"""The separators `;?&#` as ODBC's addresses write them, after a %."""
_QUOTED = re.compile(r"\"(?![\s,:}\]])[^\"]*+\"|'(?![\s,:}\]])[^']*+'")
"""A quoted value, unless the quote ends a string of JSON that has the name."""
_VALUE = re.compile(
    rf"(?:(?:basic|bearer|digest)[ \t]++)?+(?:{_QUOTED.pattern}|(?:(?!%3b|%26)[^\s&;'\"\\])++)", re.IGNORECASE
)
_IN_QUERIES = re.compile(
    "auth|bearer|code|cred|hmac|jwt|key|otp|pass|policy|pwd|secret|session|sig|ticket|token", re.IGNORECASE
)
"""Parts of the names of secrets in an address's query."""
_ANYWHERE = re.compile(
    "(?:authorization|credentials?|passphrase|passw(?:or)?d|pwd|secret|signature|token"
    "|(?:access|account|api|private|secret)[_-]?key)$",
    re.IGNORECASE,
)
"""How names of secrets end everywhere else, e.g. PGPASSWORD or --api-key."""
_BEARER = re.compile(r"\b(bearer[ \t]++)[\w.~+/=-]{8,}+", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?<!/)//([^\s/'\"]*+)")
_PORT = re.compile(r"\d++/")
_ENDS = re.compile(r"(\s++|\"(?=[,:}\]]))")
"""Where an address ends at the latest: at a blank, or with a string of JSON."""


def without_secrets(text: str) -> str:
    """A text with `***` in place of the users of addresses, and of values that sign or authorise.

    >>> without_secrets("fetching https://me:word@host/a.zip?part=1&sig=ab+cd")
    'fetching https://***@host/a.zip?part=1&sig=***'
    >>> without_secrets("PGPASSWORD=word --token 0123")
    'PGPASSWORD=*** --token ***'
    """
    text = "".join(_without_users(part) if "@" in part else part for part in _ENDS.split(text))
    shown = []
    done = position = 0
    while named := _NAMED.search(text, position):
        position = named.end()
        if value := _secret_value(text, named):
            quote = value[0][0] if named["sign"][0] in "\"'" else ""
            shown += [text[done:position], f"{quote}***{quote}"]
            done = position = value.end()
    return _BEARER.sub(r"\1***", "".join([*shown, text[done:]]))


def address_without_secrets(address: str) -> str:
    """As :func:`without_secrets`, for a text that is one address: its password may also hold blanks."""
    scheme, slashes, rest = address.partition("//")
    if re.match(r"[^/:@]++:", rest) and "@" in rest:
        rest = f"***@{rest.rpartition('@')[2]}"
    return without_secrets(f"{scheme}{slashes}{rest}")


def _secret_value(text: str, named: re.Match[str]) -> re.Match[str] | None:
    """The value after a name, if it is a secret."""
    name, sign, before = named["name"], named["sign"], text[named.start() - 1 : named.start()]
    in_query = before in ("?", "&", ";", "#") or (before == "%" and name[:2].lower() in _ENCODED)
    if in_query and sign.lower() in ("=", "%3d"):
        return _VALUE.match(text, named.end()) if _IN_QUERIES.search(name) else None
    if not _ANYWHERE.search(name) or (sign.isspace() and not name.startswith("--")):
        return None
    in_json = sign[0] in "\"'"  # whose values may also be numbers and lists
    return (_QUOTED if in_json else _VALUE).match(text, named.end())


def _without_users(chunk: str) -> str:
    """Text without blanks, without users and passwords: a password ends at the last @."""
    last = chunk.rindex("@")
    shown, done = [], 0
    for found in _AUTHORITY.finditer(chunk):
        start, authority = found.start(1), found[1]
        password = start + authority.find(":") + 1
        if start < password <= last and not _PORT.match(chunk, password):
            end = last
        elif "@" in authority:
            end = start + authority.rindex("@")
        else:
            continue
        shown += [chunk[done:start], "***"]
        done = end
        if end == last:
            break
    return "".join([*shown, chunk[done:]])
