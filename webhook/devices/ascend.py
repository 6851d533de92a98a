"""Ascend: one family for each chip of `vnpus.configs`, cut into templates (hard split) or shared softly (hami-core).

Source: HAMi pkg/device/ascend/device.go. Memory is rounded up to a template before the
factor is applied, as HAMi does and books it (weak spot D22). The cores that a template implies are booked by nobody, so
they are charged to nobody (D25). Different on purpose: memory of 0, negative or with a fraction is refused, not rounded
up to a template or taken for a whole card (D24); a part of a 910C's memory is refused even where one card was asked,
since HAMi makes two of it and then refuses its own result (D23); memory beyond the card is refused for soft sharing
too, where no card could ever hold it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from webhook.api.quantity import Quantity
from webhook.devices.base import (
    MAX_INT32,
    Card,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Unusable,
)
from webhook.devices.family import Family
from webhook.devices.guide import Guide
from webhook.devices.reading import quantity_or_none, rewritten
from webhook.devices.registration import decode_json_cards

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.config import ConfigBlock

_MODE_ANNOTATION = "huawei.com/vnpu-mode"
_SOFT_MODE = "hami-core"

# The chip whose cards come in pairs where `superPod` is set.
_PAIRED_CHIP = "Ascend910C"

_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendConfig:
    """An entry of `vnpus.configs`, as far as admission goes.

    Attributes:
        allocatable: Memory of a whole card in units of the memory resource; 0 where no sizes are configured.
        capacity: The most that may be asked, which is given as a whole card.
        templates: Memory of each template, smallest first.
    """

    common_word: str
    names: ResourceNames
    allocatable: int
    capacity: int
    templates: tuple[int, ...]
    is_paired: bool
    runtime_class_name: str
    overwrite_env: bool

    @classmethod
    def read(cls, block: ConfigBlock) -> Self:
        """Return what an entry says; errors name line and key."""
        block.knows("chipName", "aiCore", "aiCPU")
        common_word = block.text("commonWord")
        if not common_word and block.resource_name("resourceName"):
            raise block.error("resourceName", "stands in an entry without a commonWord, which names its annotations")
        return cls(
            common_word=common_word,
            names=ResourceNames(
                count=block.resource_name("resourceName"),
                memory=block.resource_name("resourceMemoryName"),
                cores=block.resource_name("resourceCoreName"),
                # 0 and absent act as 1, as in HAMi.
                memory_factor=block.integer("memoryFactor", largest=MAX_INT32) or 1,
            ),
            allocatable=block.integer("memoryAllocatable", largest=_MAX_INT64),
            capacity=block.integer("memoryCapacity", largest=_MAX_INT64),
            templates=tuple(sorted(_template_memory(template) for template in block.blocks("templates"))),
            is_paired=block.boolean("superPod") and common_word == _PAIRED_CHIP,
            runtime_class_name=block.text("runtimeClassName"),
            overwrite_env=block.boolean("overwriteEnv"),
        )

    @property
    def largest(self) -> int:
        """The most memory that may be asked; 0 where no sizes are configured, and memory is what is asked."""
        return max(self.allocatable, self.capacity, *self.templates)

    def trimmed(self, amount: int) -> int:
        """Return the smallest template that holds an amount, else the whole card; 0 when nothing does."""
        if not self.largest:
            return amount
        whole = self.allocatable if amount <= self.capacity else 0
        return next((template for template in self.templates if amount <= template), whole)


def _template_memory(template: ConfigBlock) -> int:
    template.knows("name", "aiCore", "aiCPU")
    return template.integer("memory", largest=_MAX_INT64)


def ascend_backends(config: ConfigBlock) -> tuple[DeviceBackend, ...]:
    """Return a family for each chip that `vnpus.configs` configures with a count.

    HAMi has them only where its scheduler runs with `--enable-ascend`, which the file does not say; a pod that asks for
    a chip is charged all the same.
    """
    block = config.block("vnpus")
    if block is not None:
        block.knows("hamiVnpuCore")
    chips: dict[str, AscendConfig] = {}
    for entry in block.blocks("configs") if block is not None else ():
        chip = AscendConfig.read(entry)
        if chip.common_word in chips:
            raise entry.error("commonWord", f"{chip.common_word} is the one of another entry, too")
        if chip.names.count:
            chips[chip.common_word] = chip
    counts = frozenset(chip.names.count for chip in chips.values())
    return tuple(AscendBackend(chip, counts) for chip in chips.values())


class AscendBackend(Family):
    """One chip.

    Args:
        config: What is configured for it.
        counts: The count resources of every chip configured: a container that has one asks for cards.
    """

    guide = Guide(
        title="Ascend",
        memory=8000,
        cores=30,
        notes=(
            "HAMi gives these cards only where its scheduler runs with `--enable-ascend`; they are charged anyway.",
            "Memory is rounded up to a template of the chip, or to the whole card, which no memory stands for, too.",
            "Several cards are whole ones.",
            f"In pods annotated `{_MODE_ANNOTATION}: {_SOFT_MODE}` memory is taken as it is, and cores may be asked.",
            f"{_PAIRED_CHIP} cards come in pairs where `superPod` is set: 1 becomes 2, other odd numbers are refused.",
        ),
        differs=(
            "Memory of 0, negative or with a fraction is refused; HAMi rounds it up to a template.",
            f"A part of one {_PAIRED_CHIP} is refused; HAMi makes two cards of it and then refuses its own result.",
        ),
    )

    def __init__(self, config: AscendConfig, counts: frozenset[str]) -> None:
        super().__init__(config.names)
        self._config = config
        self._counts = counts
        self._most_units = min(config.largest or MAX_INT32, MAX_INT32 // config.names.memory_factor)
        self.key = config.common_word
        self.allocated_annotation = f"hami.io/{self.key}-devices-allocated"
        # HAMi writes `predicate-time` too, as do other schedulers of Ascend cards: it is not guarded.
        self.owned_annotations = (
            self.allocated_annotation,
            f"hami.io/{self.key}-devices-to-allocate",
            f"huawei.com/{self.key}",
        )
        self.mode_annotation = _MODE_ANNOTATION
        self.uuid_annotations = (f"hami.io/use-{self.key}-uuid", f"hami.io/no-use-{self.key}-uuid")

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:
        """Return cards in pairs, and memory rounded up to a template, or the whole card's where none is asked.

        What HAMi takes and `request` refuses is left as it is.
        """
        config, names = self._config, self.names
        count = container.limits.get(names.count)
        if count is None:
            return Defaults(env=self._env(container))
        quantity = quantity_or_none(count)
        cards = quantity.rounded_up() if quantity is not None else 0
        limits: dict[str, str] = {}
        requests: dict[str, str] = {}
        if config.is_paired and cards % 2:
            if cards != 1:
                return self._unusable(container, names.count, count, "1 or an even number of cards: they come in pairs")
            cards = 2
            limits |= rewritten(container.limits, names.count, cards)
            if names.count in container.requests:
                requests |= rewritten(container.requests, names.count, cards)
        memory = self._memory_given(container, pod, cards)
        if isinstance(memory, Unusable):
            return memory
        if memory is not None:
            limits |= rewritten(container.limits, names.memory, memory)
            requests |= rewritten(container.requests, names.memory, memory)
        return Defaults(is_found=True, limits=limits, requests=requests, runtime_class_name=config.runtime_class_name)

    def _memory_given(self, container: Container, pod: Pod, cards: int) -> int | Unusable | None:
        """Return the memory to write; None to leave it as it is."""
        config, names = self._config, self.names
        is_soft = _is_soft(pod)
        cores = quantity_or_none(container.look(names.cores))
        if not is_soft and cores is not None and cores.rounded_up() > 0:
            accepted = f"cores only with the annotation {_MODE_ANNOTATION}: {_SOFT_MODE}"
            return self._unusable(container, names.cores, container.look(names.cores), accepted)
        if not names.memory:
            return None
        asked = container.limits.get(names.memory)
        if asked is None:
            return config.allocatable or None
        quantity = quantity_or_none(asked)
        amount = quantity.whole() if quantity is not None else None
        if amount is None or amount < 0:
            return None
        if is_soft:
            return amount
        memory = config.trimmed(amount) if amount else 0
        if not memory:
            return self._unusable_memory(container, asked, self._most_units)
        if cards > 1 and config.largest and memory != config.allocatable:
            accepted = f"a whole card's {config.allocatable}, or no memory, beside {cards} cards"
            return self._unusable(container, names.memory, asked, accepted)
        return memory

    def _env(self, container: Container) -> tuple[tuple[str, str], ...]:
        """Return the variable that hides cards from a container without any (HAMi: from one with another chip, D11)."""
        has_cards = any(name in self._counts for name in container.limits)
        return (("ASCEND_VISIBLE_DEVICES", ""),) if self._config.overwrite_env and not has_cards else ()

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:
        """Return what a container asks for; see `DeviceBackend.request`."""
        request = super().request(container, pod)
        if isinstance(request, DeviceRequest) and _is_soft(pod) and self._config.allocatable:
            largest = self._config.allocatable
            if request.memory_mib > largest * self.names.memory_factor:
                return self._unusable_memory(container, container.look(self.names.memory), largest)
        return request

    def _amounts(self, container: Container) -> Mapping[str, Any]:
        """Return what a container says, without the whole card's memory that HAMi's defaulting adds to a bare 0."""
        amounts = super()._amounts(container)
        count, memory = (quantity_or_none(amounts.get(name)) for name in (self.names.count, self.names.memory))
        is_added = count == Quantity(0) and memory is not None and memory.whole() == self._config.allocatable
        return {**amounts, self.names.memory: None} if is_added else amounts

    def _memory_mib(self, container: Container, memory: Any) -> int | Unusable:
        """Return memory in MiB: at least 1 unit, and no more than may be asked at all."""
        if memory is None:
            return 0
        quantity = quantity_or_none(memory)
        amount = quantity.whole() if quantity is not None else None
        if amount is None or not 1 <= amount <= self._most_units:
            return self._unusable_memory(container, memory, self._most_units)
        return amount * self.names.memory_factor

    def _unusable_memory(self, container: Container, memory: Any, largest: int) -> Unusable:
        factor = self.names.memory_factor
        unit = "MiB" if factor == 1 else f"units of {factor} MiB"
        accepted = f"plain integer, {unit}, from 1 to {largest}; without memory it is whole cards"
        return self._unusable(container, self.names.memory, memory, accepted)

    def _unusable(self, container: Container, resource: str, value: Any, accepted: str) -> Unusable:
        return Unusable(container=container.name, resource=resource, value=str(value), accepted=accepted)

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration."""
        annotation = f"hami.io/node-register-{self.key}"
        text = node.annotations.get(annotation, "")
        return decode_json_cards(annotation, text) if text else ()


def _is_soft(pod: Pod) -> bool:
    return pod.annotations.get(_MODE_ANNOTATION) == _SOFT_MODE
