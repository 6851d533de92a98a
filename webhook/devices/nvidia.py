"""NVIDIA: cards, memory in units of `memoryFactor` MiB or in percent of a card, and cores in percent.

Source: HAMi pkg/device/nvidia/device.go. HAMi silently drops or wraps amounts it cannot
use (weak spots D3, D5, D8); here they are refused. The memory of a card without a figure is sized by the inventory
(D1).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import msgspec

from webhook.api.quantity import parse_quantity
from webhook.devices.base import (
    MAX_INT32,
    Card,
    CardConstraint,
    CardKind,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Share,
    Unusable,
    comma_list,
    read_whole,
)
from webhook.devices.config import ConfigBlock
from webhook.devices.guide import Guide
from webhook.devices.reading import quantity_or_none
from webhook.devices.registration import decode_comma_cards, decode_json_cards
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod

_REGISTER_ANNOTATION = "hami.io/node-nvidia-register"
_SCORE_ANNOTATION = "hami.io/node-nvidia-score"
_WHOLE_CARD = 100

# What the device plugin and the scheduler read, and admission does not. Source: HAMi pkg/device/nvidia/device.go.
_KEYS_ELSEWHERE = (
    "deviceSplitCount",
    "deviceMemoryScaling",
    "deviceCoreScaling",
    "preConfiguredDeviceMemory",
    "disableCoreLimit",
    "enableNumaTopology",
    "libCudaLogLevel",
)

# Source: HAMi pkg/device/nvidia/mig_profiles.go, such as `1g.5gb`; HAMi looks at the length in bytes.
_MIG_PROFILE = re.compile(r"[^.]+g\..*", re.DOTALL)


class _PairScore(msgspec.Struct):
    """How well a card is connected to others."""

    uuid: str = ""
    score: dict[str, int] | None = None


_PAIR_SCORES = msgspec.json.Decoder(list[_PairScore] | None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaConfig:
    """The `nvidia` block of HAMi's device configuration, as far as admission goes; fields are its keys."""

    count_name: str = ""
    memory_name: str = ""
    memory_percentage_name: str = ""
    core_name: str = ""
    priority_name: str = ""
    memory_factor: int = 1
    default_memory_mib: int = 0
    default_cores_percent: int = 0
    default_cards: int = 0
    overwrite_env: bool = False
    core_policy: str = ""
    runtime_class_name: str = ""

    @classmethod
    def read(cls, block: ConfigBlock) -> Self:
        """Return what the block says; errors name line and key."""
        block.knows(*_KEYS_ELSEWHERE)
        _check_mig_profiles(block)
        return cls(
            count_name=block.resource_name("resourceCountName"),
            memory_name=block.resource_name("resourceMemoryName"),
            memory_percentage_name=block.resource_name("resourceMemoryPercentageName"),
            core_name=block.resource_name("resourceCoreName"),
            priority_name=block.resource_name("resourcePriorityName"),
            # 0 and absent act as 1, as in HAMi.
            memory_factor=block.integer("memoryFactor", largest=MAX_INT32) or 1,
            default_memory_mib=block.integer("defaultMemory", largest=MAX_INT32),
            # Booked cores never pass a whole card, so neither does what is charged for the default.
            default_cores_percent=min(block.integer("defaultCores", largest=MAX_INT32), 100),
            default_cards=block.integer("defaultGPUNum", largest=MAX_INT32),
            overwrite_env=block.boolean("overwriteEnv"),
            core_policy=block.text("gpuCorePolicy"),
            runtime_class_name=block.text("runtimeClassName"),
        )


def _check_mig_profiles(block: ConfigBlock) -> None:
    """Refuse an allow-list with which HAMi does not start; what it allows is between HAMi and the nodes."""
    for entry in block.blocks("migProfileAllowlist"):
        for key in ("models", "profiles"):
            if not entry.texts(key):
                raise entry.error(key, "must list at least one, or HAMi does not start")
        for profile in entry.texts("profiles"):
            if not _MIG_PROFILE.fullmatch(profile):
                raise entry.error("profiles", f"{profile!r} is no MIG profile: write one such as 1g.5gb")


class NvidiaBackend:
    """The NVIDIA family."""

    key = "NVIDIA"
    guide = Guide(
        title="NVIDIA",
        memory=8000,
        cores=30,
        notes=(
            "Memory, a percentage or cores without a count ask for `defaultGPUNum` cards, 1 in HAMi's default.",
            "Memory wins over a percentage beside it. 0 of either is as good as none: a whole card.",
            "On a MIG card HAMi books the profile that it cuts, in place of what was asked.",
        ),
        differs=(
            "Percentages and whole cards are charged at creation; HAMi charges no memory until it has placed the pod.",
            "`16Gi`, `1.5`, and amounts out of range are refused; HAMi drops or wraps them in silence.",
        ),
    )
    allocated_annotation = "hami.io/vgpu-devices-allocated"
    owned_annotations = (
        "hami.io/vgpu-devices-allocated",
        "hami.io/vgpu-devices-to-allocate",
        "hami.io/vgpu-mig-allocations",
    )

    counts_by_card = False
    sizing_annotations = (
        "nvidia.com/use-gputype",
        "nvidia.com/nouse-gputype",
        "nvidia.com/vgpu-mode",
        "nvidia.com/use-gpuuuid",
        "nvidia.com/nouse-gpuuuid",
    )

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `nvidia` block configures it, if it does."""
        block = config.block("nvidia")
        return (cls(NvidiaConfig.read(block)),) if block is not None else ()

    def __init__(self, config: NvidiaConfig) -> None:
        self._config = config
        self.names = ResourceNames(
            count=config.count_name,
            memory=config.memory_name,
            cores=config.core_name,
            memory_percentage=config.memory_percentage_name,
            memory_factor=config.memory_factor,
        )
        asked = (config.count_name, config.memory_name, config.memory_percentage_name, config.core_name)
        self.managed_resources = tuple(name for name in asked if name)

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:  # noqa: ARG002 - other families read it
        """Return the count and the cores that HAMi adds.

        A container that limits memory, percentage or cores without a count asks for the configured number of cards. One
        that has cards, no cores, and takes their whole memory (no memory, or 100 percent) takes their whole compute
        too.
        """
        config = self._config
        limits = container.limits
        percent = container.look(config.memory_percentage_name)
        if percent is not None and isinstance(unusable := self._percent(container, percent), Unusable):
            return unusable
        added: dict[str, str] = {}
        amounts = (config.core_name, config.memory_name, config.memory_percentage_name)
        if (
            config.count_name
            and container.look(config.count_name) is None
            and config.default_cards
            and any(name in limits for name in amounts)
        ):
            added[config.count_name] = str(config.default_cards)
        has_count = bool(added) or container.look(config.count_name) is not None
        is_exclusive = False
        if has_count and config.core_name and container.look(config.core_name) is None:
            if percent is not None:
                is_exclusive = parse_quantity(percent).whole() == _WHOLE_CARD
            else:
                is_exclusive = container.look(config.memory_name) is None
            if is_exclusive:
                added[config.core_name] = str(_WHOLE_CARD)
        is_found = is_exclusive or config.count_name in limits or config.count_name in added
        return Defaults(
            is_found=is_found,
            limits=added,
            env=self._env(container, is_found=is_found),
            runtime_class_name=config.runtime_class_name if is_found else "",
        )

    def _env(self, container: Container, *, is_found: bool) -> tuple[tuple[str, str], ...]:
        """Return the variables that HAMi's libraries read; only where they mean something (HAMi: everywhere, D11)."""
        config = self._config
        if not is_found:
            # A count in requests alone is found the first time, by the cores it lacks, and not the second.
            has_cards = container.look(config.count_name) is not None
            return (("NVIDIA_VISIBLE_DEVICES", "none"),) if config.overwrite_env and not has_cards else ()
        env = []
        priority = quantity_or_none(container.limits.get(config.priority_name)) if config.priority_name else None
        if priority is not None:
            env.append(("CUDA_TASK_PRIORITY", str(priority.rounded_up())))
        if config.core_policy not in ("", "default"):
            env.append(("GPU_CORE_UTILIZATION_POLICY", config.core_policy))
        return tuple(env)

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for; see `DeviceBackend.request`."""
        config = self._config
        count = container.look(config.count_name)
        memory = container.look(config.memory_name)
        percent = container.look(config.memory_percentage_name)
        cores = container.look(config.core_name)
        figures = self._figures(container, memory, percent, cores)
        if isinstance(figures, Unusable):
            return figures
        memory_mib, memory_percent, cores_percent = figures
        if count is None:
            for name, value in (
                (config.memory_name, memory),
                (config.memory_percentage_name, percent),
                (config.core_name, cores),
            ):
                if value is not None:
                    return Ineffective(container=container.name, resource=name, count_name=config.count_name)
            return None
        cards = read_whole(
            container,
            config.count_name,
            count,
            largest=MAX_INT32,
            accepted=f"a plain integer from 0 to {MAX_INT32}, cards",
        )
        if isinstance(cards, Unusable):
            return cards
        if cards == 0:
            # The cores of a whole card are what defaulting adds to a bare 0.
            has_cores = cores is not None and cores_percent not in (0, _WHOLE_CARD)
            beside = memory is not None or percent is not None or has_cores
            if not beside:
                return None
            return Unusable(
                container=container.name,
                resource=config.count_name,
                value=str(count),
                accepted="at least 1 card beside memory, a percentage or cores",
            )
        return DeviceRequest(
            cards=cards,
            memory_mib=memory_mib,
            memory_percent=memory_percent,
            cores_percent=cores_percent,
            memory_by_card=memory_mib == 0,
        )

    def share(self, request: DeviceRequest, kind: CardKind) -> Share | None:
        """Return the part of the card's memory that HAMi books: `total * percent div 100` as its placement does."""
        if not kind.memory_mib:
            return None
        return Share(kind.memory_mib * (request.memory_percent or _WHOLE_CARD) // 100, request.cores_percent)

    def _figures(
        self, container: Container, memory: Any, percent: Any, cores: Any
    ) -> tuple[int, int | None, int] | Unusable:
        """Return memory in MiB, its percentage and the cores of one card."""
        config = self._config
        memory_mib = 0
        if memory is not None:
            unit = "MiB" if config.memory_factor == 1 else f"units of {config.memory_factor} MiB"
            largest = MAX_INT32 // config.memory_factor
            units = read_whole(
                container,
                config.memory_name,
                memory,
                largest=largest,
                accepted=f"plain integer, {unit}, e.g. {16384 // config.memory_factor}, at most {largest}",
            )
            if isinstance(units, Unusable):
                return units
            memory_mib = units * config.memory_factor
        memory_percent: int | None = None
        if percent is not None:
            share = self._percent(container, percent)
            if isinstance(share, Unusable):
                return share
            # 0 is HAMi's "not set".
            memory_percent = share or None
        if memory_mib == 0 and memory_percent is None:
            # The default is MiB whatever the factor is, as HAMi has it (D9); without one the container takes whole
            # cards.
            memory_mib = config.default_memory_mib
            memory_percent = None if memory_mib else _WHOLE_CARD
        if cores is None:
            return memory_mib, memory_percent, config.default_cores_percent
        cores_percent = read_whole(
            container,
            config.core_name,
            cores,
            largest=_WHOLE_CARD,
            accepted="plain integer from 0 to 100, percent of each card's cores",
        )
        if isinstance(cores_percent, Unusable):
            return cores_percent
        return memory_mib, memory_percent, cores_percent

    def _percent(self, container: Container, value: Any) -> int | Unusable:
        return read_whole(
            container,
            self._config.memory_percentage_name,
            value,
            largest=100,
            accepted="plain integer from 0 to 100, percent of each card's memory",
        )

    def counted(self, memory: int, cores: int, kind: CardKind | None) -> Share:  # noqa: ARG002 - booked as it is asked
        """Return the figures as they are."""
        return Share(memory, cores)

    def constraint(self, annotations: Mapping[str, str]) -> CardConstraint:
        """Return which cards a pod's annotations admit. Source: HAMi pkg/device/nvidia/device.go."""
        return CardConstraint(
            use_models=comma_list(annotations.get("nvidia.com/use-gputype", "").lower()),
            avoid_models=comma_list(annotations.get("nvidia.com/nouse-gputype", "").lower()),
            mode=annotations.get("nvidia.com/vgpu-mode", ""),
            use_uuids=frozenset(comma_list(annotations.get("nvidia.com/use-gpuuuid"))),
            avoid_uuids=frozenset(comma_list(annotations.get("nvidia.com/nouse-gpuuuid"))),
        )

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return the cards in the node's registration, in HAMi's JSON form or its older comma form.

        HAMi reads the scores of card pairs in the same step, and a node whose scores it cannot read has no cards to it.
        """
        text = node.annotations.get(_REGISTER_ANNOTATION, "")
        if not text:
            return ()
        scores = node.annotations.get(_SCORE_ANNOTATION)
        if scores is not None:
            try:
                _PAIR_SCORES.decode(scores)
            except msgspec.MsgspecError as error:
                raise DecodeError(_SCORE_ANNOTATION, str(error)) from error
        if text.lstrip().startswith(("[", "n")):
            return decode_json_cards(_REGISTER_ANNOTATION, text)
        return decode_comma_cards(_REGISTER_ANNOTATION, text)
