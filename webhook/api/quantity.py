"""Kubernetes quantities, read exactly as the API server reads them.

Source: k8s.io/apimachinery pkg/api/resource/quantity.go, `ParseQuantity`. Two of its rules are easy to miss: amounts
finer than one billionth are rounded away from zero to a billionth, and amounts with a binary suffix are
capped at 2^63 - 1. Where upstream's later conversion to 64 bits overflows (large negative numbers), ours stays exact.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from webhook.errors import QuantityError

_NANO = 10**9
_MAX_INT64 = 2**63 - 1

# A number longer than this is never written by hand or by a controller; reading it costs quadratic time.
_MAX_LENGTH = 1000

# Amounts of 10^60 and more all read as 10^60: no figure of ours comes near, and `1e999999999` must not cost memory.
_MAX_DIGITS = 60
_HUGE = 10**69

_DECIMAL_EXPONENTS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SHIFTS = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

_PATTERN = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<fraction>[0-9]*))?"
    r"(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i)?)"
)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact amount, held in billionths, the finest step Kubernetes keeps."""

    nanos: int

    def whole(self) -> int | None:
        """Return the amount where it is a whole number, whatever its spelling (`16.0`, `16000m`), else None."""
        amount, rest = divmod(self.nanos, _NANO)
        return None if rest else amount

    def rounded_up(self) -> int:
        """Return the amount rounded away from zero to a whole number, as `Quantity.Value()` does."""
        return -(self.nanos // -_NANO) if self.nanos >= 0 else self.nanos // _NANO


def parse_quantity(value: object, field: str = "") -> Quantity:
    """Return the exact amount that `value` stands for.

    Args:
        value: The text of a quantity. Numbers are taken too: JSON and YAML allow them unquoted.
        field: Path of the field, for the error.

    Raises:
        QuantityError: The API server would not parse it; the error names the field and the value.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = repr(value)
    if not isinstance(value, str):
        raise QuantityError(field, f"{value!r} is not a quantity: write a number such as 16384")
    try:
        return _parse(value)
    except QuantityError as error:
        raise QuantityError(field, error.problem) from None


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity:
    if len(text) > _MAX_LENGTH:
        raise QuantityError("", f"{text[:20]!r}... is longer than {_MAX_LENGTH} characters")
    match = _PATTERN.fullmatch(text) if text and text.isascii() else None
    if match is None:
        raise QuantityError("", f"{text!r} is not a quantity: write a number such as 16384")
    fraction = match["fraction"] or ""
    digits = (match["whole"] + fraction).lstrip("0")
    suffix = match["suffix"] or ""
    if not match["whole"] and not fraction and _asks_for_a_digit(suffix, match["exponent"]):
        raise QuantityError("", f"{text!r} has no digit: write a number such as 16384")
    if not digits:
        nanos = 0
    elif suffix in _BINARY_SHIFTS:
        scaled = (int(digits) << _BINARY_SHIFTS[suffix]) * _NANO
        nanos = min(-(scaled // -(10 ** len(fraction))), _MAX_INT64 * _NANO)
    else:
        exponent = int(match["exponent"]) if match["exponent"] else _DECIMAL_EXPONENTS[suffix]
        nanos = _shifted(digits, exponent - len(fraction) + 9)
    return Quantity(-nanos if match["sign"] == "-" else nanos)


def _asks_for_a_digit(suffix: str, exponent: str | None) -> bool:
    """Return whether upstream reads such a text on its slow path; the fast one takes no digit at all for 0."""
    return suffix in ("Pi", "Ei") or (exponent is not None and int(exponent) < _DECIMAL_EXPONENTS["n"])


def _shifted(digits: str, exponent: int) -> int:
    """Return `digits` times ten to the `exponent`, rounded up, without building numbers past `_MAX_DIGITS`."""
    length = len(digits) + exponent
    if length > _MAX_DIGITS + 9:
        return _HUGE
    if exponent >= 0:
        return int(digits) * int(10**exponent)
    kept, dropped = (digits[:length], digits[length:]) if length > 0 else ("0", digits)
    return int(kept) + (1 if dropped.strip("0") else 0)
