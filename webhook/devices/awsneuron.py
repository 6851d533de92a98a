"""AWS Neuron: whole devices by count, or NeuronCores that are laid out on devices two by two.

Source: HAMi pkg/device/awsneuron/device.go. Cores are a plain number here, and in quotas. HAMi
books them as a bit mask (weak spot D18), which is counted by its bits. It charges devices asked by count with the cores
of the first node it happened to see, 0 before (D19); here each such device is charged with the cores that nodes
register.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from webhook.devices.base import (
    MAX_INT32,
    NO_DEFAULTS,
    Card,
    CardKind,
    Defaults,
    DeviceBackend,
    DeviceRequest,
    Ineffective,
    ResourceNames,
    Share,
    Unusable,
)
from webhook.devices.family import Family
from webhook.devices.guide import Guide
from webhook.devices.reading import quantity_or_none
from webhook.devices.whole_card import capacity
from webhook.errors import DecodeError

if TYPE_CHECKING:
    from webhook.api.node import Node
    from webhook.api.pod import Container, Pod
    from webhook.devices.config import ConfigBlock

# HAMi lays at most two cores on a device, whatever the device has. Source: HAMi, `maxCoresPerNeuronDevice`.
_CORES_PER_DEVICE = 2
_MOST_CORES = _CORES_PER_DEVICE * MAX_INT32

# The mask of a device's cores is booked as a 32-bit number.
_MOST_REGISTERED_CORES = 31


class AwsNeuronBackend(Family):
    """The AWS Neuron family."""

    key = "AWSNeuron"
    guide = Guide(
        title="AWS Neuron",
        cores=4,
        notes=(
            "A container asks for whole devices, or for NeuronCores: 1, or a multiple of 2.",
            "Cores beside a count mean nothing.",
        ),
        differs=(
            "Cores are a number throughout; HAMi books a bit mask (3 for two cores) against the same quota.",
            "Whole devices are charged the cores that nodes register; HAMi charges those of the first node it saw.",
        ),
    )
    allocated_annotation = "hami.io/aws-neuron-devices-allocated"
    owned_annotations = (
        "hami.io/aws-neuron-devices-allocated",
        "AWS_NEURON_IDS",
        "NEURON_ALLOC_TIME",
        "NEURON_ALLOCATED",
        "NEURON_RESOURCE_TYPE",
        "aws.amazon.com/predicate-node",
    )
    uuid_annotations = ("aws.amazon.com/use-neuron-uuid", "aws.amazon.com/nouse-neuron-uuid")

    @classmethod
    def from_config(cls, config: ConfigBlock) -> tuple[DeviceBackend, ...]:
        """Return the family as the `awsneuron` block configures it, if it does."""
        block = config.block("awsneuron")
        if block is None:
            return ()
        names = ResourceNames(
            count=block.resource_name("resourceCountName"),
            cores=block.resource_name("resourceCoreName"),
            count_unit="devices",
            cores_unit="cores",
        )
        return (cls(names),)

    def defaults(self, container: Container, pod: Pod) -> Defaults | Unusable:
        """Return whether HAMi takes the pod over; it changes nothing, and refuses what it cannot lay out."""
        request = self.request(container, pod)
        if isinstance(request, Unusable):
            return request
        return NO_DEFAULTS if request is None else Defaults(is_found=True)

    def request(self, container: Container, pod: Pod) -> DeviceRequest | Unusable | Ineffective | None:  # noqa: ARG002
        """Return what a container asks for; see `DeviceBackend.request`.

        Cores beside a count mean nothing to HAMi, so any number will do; what is no number is refused all the same.
        """
        names = self.names
        count = container.look(names.count)
        cores = container.look(names.cores)
        if count is not None:
            devices = _whole(container, names.count, count, smallest=1, largest=MAX_INT32)
            if isinstance(devices, Unusable):
                return devices
            beside = 0 if cores is None else _whole(container, names.cores, cores, smallest=0, largest=_MOST_CORES)
            if isinstance(beside, Unusable):
                return beside
            return DeviceRequest(
                cards=devices, memory_mib=0, memory_percent=None, cores_percent=0, cores_by_card=bool(names.cores)
            )
        if cores is None:
            return None
        asked = _whole(container, names.cores, cores, smallest=1, largest=_MOST_CORES)
        if isinstance(asked, Unusable):
            return asked
        if asked <= _CORES_PER_DEVICE:
            return DeviceRequest(cards=1, memory_mib=0, memory_percent=None, cores_percent=asked)
        if asked % _CORES_PER_DEVICE:
            accepted = f"1 core, or a multiple of {_CORES_PER_DEVICE}"
            return Unusable(container=container.name, resource=names.cores, value=str(cores), accepted=accepted)
        return DeviceRequest(
            cards=asked // _CORES_PER_DEVICE, memory_mib=0, memory_percent=None, cores_percent=_CORES_PER_DEVICE
        )

    def share(self, request: DeviceRequest, kind: CardKind) -> Share | None:
        """Return the cores of a device, which is handed out whole; None where nothing says how many it has."""
        return Share(request.memory_mib, kind.cores.bit_count()) if kind.cores else None

    def counted(self, memory: int, cores: int, kind: CardKind | None) -> Share:  # noqa: ARG002 - the mask says it all
        """Return the number of booked cores: the annotation holds them as a bit mask."""
        return Share(memory, cores.bit_count())

    def cards(self, node: Node) -> tuple[Card, ...]:
        """Return one card for each device of the node's capacity; its cores are the bit mask that HAMi registers.

        HAMi gives every node the cores of the first one it saw; here each node has its own.
        """
        devices = capacity(node, self.names.count)
        if not devices:
            return ()
        cores = capacity(node, self.names.cores) // devices
        if cores > _MOST_REGISTERED_CORES:
            raise DecodeError(f"status.capacity of {self.names.cores}", f"{cores} cores a device are more than any has")
        kind = CardKind(model=self.key, cores=2**cores - 1)
        return tuple(Card(f"{node.metadata.name}-{self.key}-{index}", kind) for index in range(devices))


def _whole(container: Container, resource: str, value: Any, *, smallest: int, largest: int) -> int | Unusable:
    quantity = quantity_or_none(value)
    amount = quantity.whole() if quantity is not None else None
    if amount is not None and smallest <= amount <= largest:
        return amount
    accepted = f"plain integer from {smallest} to {largest}"
    return Unusable(container=container.name, resource=resource, value=str(value), accepted=accepted)
