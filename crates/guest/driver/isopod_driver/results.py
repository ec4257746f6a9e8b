"""Converts a bundle of MIME types to the event that E2B's SDKs read.

Everything has a size limit: long text is truncated with a marker. Images and objects cannot be truncated; they are omitted,
with a note in `extra`.
"""

import base64
import math

from . import pristine

__builtins__ = pristine.BUILTINS

MAX_BYTES = 10 * 1024 * 1024
NOTE = "isopod/left-out"

FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}
# These can still be read after truncation.
TRUNCATABLE = {"text/plain", "text/html", "text/markdown", "text/latex", "application/javascript"}
BASE64 = {"image/png", "image/jpeg", "application/pdf"}
OBJECTS = {"application/json", "e2b/data", "e2b/chart"}


class Omitted(dict):
    """A formatter returns this in place of an object that is too large to send."""

    def __init__(self, why):
        super().__init__(why=why)
        self.why = why


def event(bundle, is_main):
    result, extra, notes = {"type": "result"}, {}, {}
    for mime, value in bundle.items():
        value, note = settle(mime, value)
        if note:
            notes[mime] = note
        elif value is not None:
            place(result, extra, mime, value)
    if notes:
        extra[NOTE] = notes
    if extra:
        result["extra"] = extra
    result["is_main_result"] = is_main
    return result


def error(name, value, traceback):
    return {
        "type": "error",
        "name": truncate(str(name)),
        "value": truncate(str(value)),
        "traceback": truncate(str(traceback)),
    }


def place(result, extra, mime, value):
    field = FIELDS.get(mime)
    if field is None:
        extra[mime] = value
    else:
        result[field] = value


def settle(mime, value):
    """The value as JSON within the limit, or a note why it is omitted."""
    if isinstance(value, Omitted):
        return None, value.why
    if isinstance(value, (bytes, bytearray)):
        value = base64.b64encode(value).decode("ascii")
    elif isinstance(value, (list, tuple)) and mime not in OBJECTS and all(isinstance(part, str) for part in value):
        value = "".join(value)
    elif isinstance(value, str) and mime in BASE64:
        # Some kernels wrap it into lines.
        value = value.replace("\n", "")
    if isinstance(value, str) and mime not in OBJECTS:
        return settle_text(mime, unquoted(value) if mime == "text/plain" else value)
    return settle_object(value)


def settle_text(mime, text):
    if len(text) * 4 <= MAX_BYTES or utf8_size(text) <= MAX_BYTES:
        return text, None
    if mime in TRUNCATABLE:
        return truncate(text), None
    return None, "%d bytes are more than the limit of %d" % (utf8_size(text), MAX_BYTES)


def settle_object(value):
    try:
        value = clean(value)
        size = len(pristine.encode(value))
    except TooLarge as problem:
        return None, str(problem)
    except (TypeError, ValueError, RecursionError) as problem:
        return None, "cannot be written as JSON: %s" % problem
    if size > MAX_BYTES:
        return None, "%d bytes are more than the limit of %d" % (size, MAX_BYTES)
    return value, None


def truncate(text):
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= MAX_BYTES:
        return text
    kept = data[:MAX_BYTES].decode("utf-8", "ignore")
    return "%s\u2026 (truncated: %d bytes)" % (kept, len(data) - len(kept.encode("utf-8", "surrogatepass")))


def utf8_size(text):
    return len(text.encode("utf-8", "surrogatepass"))


def unquoted(text):
    """The text of a string literal without its quotes, as E2B shows it."""
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    return text


MAX_NODES = 500_000


class TooLarge(ValueError):
    def __init__(self):
        super().__init__("more than %d values" % MAX_NODES)


def clean(value):
    """A copy that is valid JSON: no NaN or infinity, string keys, plain numbers, dates as ISO text."""
    return Cleaner().clean(value)


class Cleaner:
    def __init__(self):
        self.nodes = 0

    def clean(self, value):
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise TooLarge()
        if value is None or value is True or value is False or isinstance(value, (str, int)):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if isinstance(value, dict):
            return {key_text(key): self.clean(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clean(item) for item in value]
        return self.clean_foreign(value)

    def clean_foreign(self, value):
        # numpy and pandas scalars, dates and decimals are recognised by their methods, without importing a package.
        if hasattr(value, "isoformat"):
            return None if is_not_a_time(value) else value.isoformat()
        if hasattr(value, "dtype") and hasattr(value, "tolist"):
            return self.clean(value.tolist())
        raise TypeError("a %s" % type(value).__name__)


def is_not_a_time(value):
    return value != value


def key_text(key):
    if isinstance(key, str):
        return key
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    if hasattr(key, "isoformat"):
        return key.isoformat()
    return str(key)
