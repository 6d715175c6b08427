"""Addresses without the passwords in them, for everything that is shown or kept."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from raygpu.errors import BadInput

HIDDEN = "***"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
_PASSWORD = re.compile(r"(://[^/:@\s]*):(.*)@")
_TOKEN = re.compile(r"(https?://)([^/:@\s]+)@", re.IGNORECASE)
"""Web address with a user and no password: what stands there is a token."""
_WORDS = "password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|sig|signature|credential|auth|key"
_SECRET_OPTION = re.compile(
    rf"([?&](?!ssl)(?:[\w.-]*[_.-])?(?:{_WORDS})(?:[_.-][\w.-]*)?="
    r"|[?&][\w-]*(?:password|passwd|pwd|secret|token)[\w-]*=)([^&#\s]*)",
    re.IGNORECASE,
)


def redacted(uri: str) -> str:
    """Return the URI with `***` in place of passwords, even of one that contains / or @."""
    uri = _TOKEN.sub(rf"\1{HIDDEN}@", _PASSWORD.sub(rf"\1:{HIDDEN}@", uri))
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", uri)


def cleaned(text: str, uri: str) -> str:
    """Return a library's message about `uri` without the secrets that it may repeat."""
    text = text.replace(uri, redacted(uri))
    secrets = [match[2] for pattern in (_PASSWORD, _TOKEN, _SECRET_OPTION) for match in pattern.finditer(uri)]
    for secret in secrets:
        for form in (secret, unquote(secret)):
            if len(form) > 2:  # shorter ones occur in ordinary words, and hide little
                text = text.replace(form, HIDDEN)
    return text


def completed(uri: str) -> str:
    """Return a tracking URI that was kept without its password with the password from the environment. Raises
    BadInput."""
    if uri != redacted(uri) or HIDDEN not in uri:
        return uri
    known = os.environ.get(URI_VARIABLE, "")
    if redacted(known) == uri:
        return known
    raise BadInput(f"tracking.uri: read {uri!r}: passwords are not kept; set {URI_VARIABLE} to the whole of it")
