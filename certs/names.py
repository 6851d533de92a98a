"""The names a serving certificate answers to."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Self

IpAddress = IPv4Address | IPv6Address

# A DNS name as RFC 1123 has it, lower case, with an optional wildcard label in front.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DNS_NAME = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_DNS_NAME_LENGTH = 253
_LOOKS_LIKE_IPV4 = re.compile(r"[0-9]+(\.[0-9]+){3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a serving certificate answers to: its subject alternative names.

    Kept in the order given, in lower case, each once. At least one is needed. What no client could ever
    match (an address among the DNS names, a zone index in an address) raises ValueError: a certificate would
    lack it at every look, and be renewed each time.
    """

    dns_names: tuple[str, ...] = ()
    ip_addresses: tuple[IpAddress, ...] = ()

    def __post_init__(self) -> None:
        dns_names = tuple(dict.fromkeys(name.lower() for name in self.dns_names))
        for name in dns_names:
            if len(name) > _DNS_NAME_LENGTH or not _DNS_NAME.fullmatch(name) or _LOOKS_LIKE_IPV4.fullmatch(name):
                raise ValueError(f"{name!r} is not a DNS name")
        for address in self.ip_addresses:
            if isinstance(address, IPv6Address) and address.scope_id is not None:
                raise ValueError(f"{str(address)!r} names an interface, which a certificate cannot hold")
        if not dns_names and not self.ip_addresses:
            raise ValueError("a serving certificate needs at least one DNS name or IP address")
        object.__setattr__(self, "dns_names", dns_names)
        object.__setattr__(self, "ip_addresses", tuple(dict.fromkeys(self.ip_addresses)))

    @classmethod
    def of_service(
        cls, service: str, namespace: str, *, cluster_domain: str = "cluster.local", loopback: bool = False
    ) -> Self:
        """Return the names of a Kubernetes Service, and those of this machine if `loopback` is set.

        The API server calls a webhook as `service.namespace.svc`; the other forms are what its pods may use.

        Source: Kubernetes, "DNS for Services and Pods"; apiserver pkg/util/webhook/client.go `HookClient`.
        """
        local_name = f"{service}.{namespace}.svc"
        dns_names = (service, f"{service}.{namespace}", local_name, f"{local_name}.{cluster_domain}")
        if not loopback:
            return cls(dns_names=dns_names)
        return cls(
            dns_names=(*dns_names, "localhost"),
            ip_addresses=(IPv4Address("127.0.0.1"), IPv6Address("::1")),
        )
