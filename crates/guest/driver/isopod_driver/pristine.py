"""Copies of builtins and JSON functions that user code cannot replace.

A cell runs in the same process and may assign to `json.dumps` or `builtins.len`. The modules that send a cell's output use
`BUILTINS` as their `__builtins__`, and encode and decode JSON with these references to the C code.
"""

import builtins
import json

BUILTINS = dict(vars(builtins))


def refuse(value):
    raise TypeError("a %s" % type(value).__name__)


def make_encode():
    try:
        from _json import encode_basestring_ascii, make_encoder

        write = make_encoder(None, refuse, encode_basestring_ascii, None, ": ", ", ", False, False, True)
        write({}, 0)
    except (ImportError, TypeError):
        # Another implementation of Python: use the public interface.
        return json.JSONEncoder().encode
    join = "".join
    return lambda value: join(write(value, 0))


def make_decode():
    scan = json.JSONDecoder().scan_once

    def decode(text):
        try:
            return scan(text, 0)[0]
        except StopIteration:
            raise ValueError("no JSON") from None

    return decode


encode = make_encode()
decode = make_decode()
