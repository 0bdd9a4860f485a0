"""An answer's text as the JSON that a schema asks.

A text is taken as JSON in two forms: the whole of it, or the whole of it as one fenced block (```json … ```), which
small models write whatever they are told. JSON amid other words is not searched for: what is cut out by guess may be an
example and not the answer. The text itself is never changed. NaN and Infinity are not JSON, and a number that would be
read as one of them (1e999) is no number that can be kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from millpond.rules.schema import TOO_DEEP, judge_answer

_FENCED = re.compile(r"\s*```(?:json)?[ \t]*\r?\n(.*?)\r?\n?```\s*", re.DOTALL | re.IGNORECASE)


def read_answer(text: str, schema: Mapping[str, Any]) -> tuple[Any, str]:
    """Read a text as the JSON that a schema asks: (data, "") or (what could be read, why it does not satisfy)."""
    fenced = _FENCED.fullmatch(text)
    try:
        data = json.loads(fenced[1] if fenced else text, parse_constant=_refuse_constant, parse_float=_finite)
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
