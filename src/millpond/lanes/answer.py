"""An answer's text as the JSON that a schema asks.

A text is taken as JSON in two forms: the whole of it, or the whole of it as one fenced block (```json … ```), which
small models write whatever they are told. JSON amid other words is not searched for: what is cut out by guess may be an
example and not the answer. What nobody sees around either (blanks of all kinds, a byte order mark) is passed over. The
text itself is never changed. NaN and Infinity are not JSON, and a number that would be read as one of them (1e999) is
no number that can be kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from millpond.rules.schema import TOO_DEEP, judge_answer

_FENCED = re.compile(r"```(?:json)?[ \t]*\r?\n(.*?)```", re.DOTALL | re.IGNORECASE)

_BLANKS = (
    "\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\u200b\u2060\ufeff"
)
"""What Python calls white space, and three characters that are not seen: U+200B, U+2060 and the byte order mark."""


def read_answer(text: str, schema: Mapping[str, Any]) -> tuple[Any, str]:
    """Read a text as the JSON that a schema asks: (data, "") or (what could be read, why it does not satisfy)."""
    bare = text.strip(_BLANKS)
    if fenced := _FENCED.fullmatch(bare):
        bare = fenced[1].strip(_BLANKS)
    try:
        data = json.loads(bare, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        return None, TOO_DEEP
    except ValueError as error:
        return None, f"the answer is no JSON: {error}"
    return data, judge_answer(data, schema)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:40]} is beyond every number that can be kept")
    return number
