"""The parts of a ResourceQuota that the rules read. Its status is left out: status changes alone change nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from webhook.errors import DecodeError


class _Wire(msgspec.Struct, frozen=True, rename="camel"):
    """A projection of a Kubernetes object: unknown fields are skipped."""


class ScopeRequirement(_Wire, frozen=True):
    """One `scopeSelector.matchExpressions` entry."""

    scope_name: str = ""
    operator: str = "Exists"
    values: list[str] | None = None


class ScopeSelector(_Wire, frozen=True):
    """The `scopeSelector` of a quota."""

    match_expressions: list[ScopeRequirement] | None = None


class ResourceQuotaSpec(_Wire, frozen=True):
    """The specification of a quota; `hard` holds amounts as written."""

    hard: dict[str, Any] | None = None
    scopes: list[str] | None = None
    scope_selector: ScopeSelector | None = None


class ResourceQuotaMetadata(_Wire, frozen=True):
    """The metadata of a quota."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class ResourceQuota(_Wire, frozen=True):
    """A ResourceQuota."""

    metadata: ResourceQuotaMetadata = msgspec.field(default_factory=ResourceQuotaMetadata)
    spec: ResourceQuotaSpec = msgspec.field(default_factory=ResourceQuotaSpec)

    def requirements(self) -> list[ScopeRequirement]:
        """Return every scope the quota asks for; a bare scope means that it exists."""
        bare = [ScopeRequirement(scope_name=scope) for scope in self.spec.scopes or ()]
        selector = self.spec.scope_selector
        return bare + list((selector and selector.match_expressions) or ())


_DECODER = msgspec.json.Decoder(ResourceQuota)


def decode_resource_quota(raw: bytes | msgspec.Raw) -> ResourceQuota:
    """Return the quota in a JSON text.

    Raises:
        DecodeError: The text is not a ResourceQuota; the error carries the path of the offending field.
    """
    try:
        return _DECODER.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError("resourcequota", str(error)) from error
