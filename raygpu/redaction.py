"""Addresses without the passwords in them, for everything that is shown or kept."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote

from raygpu.errors import BadInput

HIDDEN = "***"
URI_VARIABLE = "MLFLOW_TRACKING_URI"
_PASSWORD = re.compile(r"(://[^/:@\s]*):(.*)@")
_SECRET_OPTION = re.compile(r"([?&](?:[\w-]*(?:password|passwd|pwd|secret|token)[\w-]*)=)([^&\s]*)", re.IGNORECASE)


def redacted(uri: str) -> str:
    """Return the URI with `***` in place of passwords, even of one that contains / or @."""
    return _SECRET_OPTION.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1:{HIDDEN}@", uri))


def cleaned(text: str, uri: str) -> str:
    """Return a library's message about `uri` without the secrets that it may repeat."""
    text = text.replace(uri, redacted(uri))
    secrets = [match[2] for match in _PASSWORD.finditer(uri)] + [match[2] for match in _SECRET_OPTION.finditer(uri)]
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
