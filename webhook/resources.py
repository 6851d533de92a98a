"""Arithmetic on amounts: integers by key, where an absent key is 0. Nothing here changes its arguments.

Keys are opaque: admission keys by resource name, recorded usage by (device family, card).
"""

from collections.abc import Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

Amounts = dict[K, int]


def add(left: Mapping[K, int], right: Mapping[K, int]) -> Amounts[K]:
    """Return the sum, key by key."""
    total = dict(left)
    for key, amount in right.items():
        total[key] = total.get(key, 0) + amount
    return total


def subtract(left: Mapping[K, int], right: Mapping[K, int]) -> Amounts[K]:
    """Return `left` minus `right`, key by key; a key that comes to 0 is left out."""
    rest = dict(left)
    for key, amount in right.items():
        remainder = rest.get(key, 0) - amount
        if remainder:
            rest[key] = remainder
        else:
            rest.pop(key, None)
    return rest


def largest(left: Mapping[K, int], right: Mapping[K, int]) -> Amounts[K]:
    """Return the larger amount of the two, key by key."""
    result = dict(left)
    for key, amount in right.items():
        if amount > result.get(key, 0):
            result[key] = amount
    return result


def exceeding(total: Mapping[K, int], limits: Mapping[K, int]) -> list[K]:
    """Return the keys of `limits` that `total` exceeds; equality fits, and a key without a limit never exceeds."""
    return [key for key, limit in limits.items() if total.get(key, 0) > limit]
