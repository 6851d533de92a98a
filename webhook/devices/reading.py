"""How families read a container's amounts, rewrite them, and read a pod's annotations, where several do it alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.api.quantity import Quantity, parse_quantity
from webhook.devices.base import MAX_INT32, CardConstraint, Ineffective, Unusable, comma_list, read_whole
from webhook.errors import QuantityError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.pod import Container

_SUFFIXES = ("", "k", "M", "G", "T", "P", "E")


def read_count(container: Container, resource: str, value: Any) -> int | Unusable:
    """Return a number of cards, or why it cannot be used."""
    accepted = f"a plain integer from 0 to {MAX_INT32}, cards"
    return read_whole(container, resource, value, largest=MAX_INT32, accepted=accepted)


def no_card_beside(container: Container, resource: str, value: Any, beside: str) -> Unusable:
    """Return why a count of 0 cannot stand beside amounts: whoever writes them expects to get them."""
    return Unusable(
        container=container.name, resource=resource, value=str(value), accepted=f"at least 1 card beside {beside}"
    )


def without_count(container: Container, count_name: str, amounts: Mapping[str, Any]) -> Ineffective | None:
    """Return the first of `amounts` (by resource, None where not asked) that HAMi allocates nothing for, if any."""
    for resource, value in amounts.items():
        if value is not None:
            return Ineffective(container=container.name, resource=resource, count_name=count_name)
    return None


def quantity_or_none(value: Any) -> Quantity | None:
    """Return an amount; None when it is absent, or no quantity at all, which `request` refuses."""
    if value is None:
        return None
    try:
        return parse_quantity(value)
    except QuantityError:
        return None


def canonical(amount: int) -> str:
    """Return an amount from 0 on as the API server writes it, such as `10k` for 10000."""
    thousands = 0
    while amount and amount % 1000 == 0 and thousands < len(_SUFFIXES) - 1:
        amount //= 1000
        thousands += 1
    return f"{amount}{_SUFFIXES[thousands]}"


def rewritten(amounts: Mapping[str, Any], resource: str, amount: int) -> dict[str, str]:
    """Return what to set so that `resource` is `amount`; nothing where it is that already, in a plain spelling."""
    text = canonical(amount)
    is_there = resource in amounts and str(amounts[resource]) in (text, str(amount))
    return {} if is_there else {resource: text}


def named_cards(annotations: Mapping[str, str], *pairs: tuple[str, str]) -> CardConstraint:
    """Return which cards the annotations of some (use, avoid) pairs admit; every pair applies.

    Source: HAMi pkg/device/devices.go, `CheckUUID`: an empty list is no constraint.
    """
    used = [frozenset(listed) for use, _ in pairs if (listed := comma_list(annotations.get(use)))]
    avoided = (frozenset(comma_list(annotations.get(avoid))) for _, avoid in pairs)
    shared = frozenset.intersection(*used) if used else frozenset()
    # Two lists that share no card admit none, which an empty set would not say; no card has an empty UUID.
    return CardConstraint(
        use_uuids=shared or frozenset({""} if used else ()), avoid_uuids=frozenset[str]().union(*avoided)
    )
