"""What people need to know of a family and its code does not say: the words beside it in docs/devices.md.

Names, units, charges, defaults and annotations are not among them: those are asked of the family itself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Guide:
    """The words for one family.

    Attributes:
        title: The heading, for people.
        memory: An amount of memory to show what is charged, in units of the memory resource; 0 for none.
        cores: An amount of cores for the same.
        sized_by: Whose memory and cores are charged where the card decides.
        notes: What to know when a pod is written, a sentence or two each.
        differs: Where the charge is not HAMi's admission figure, or a refusal is ours alone.
    """

    title: str
    memory: int = 0
    cores: int = 0
    sized_by: str = "the card's"
    notes: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
