"""Every choice that the rules read, as one frozen value."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

MODE_LABEL = "hami-quota/mode"


class Mode(StrEnum):
    """What a refusal does in a namespace (its label `hami-quota/mode`)."""

    ENFORCE = "enforce"
    WARN = "warn"
    AUDIT = "audit"
    OFF = "off"


_MODES = {str(mode): mode for mode in Mode}


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The choices of whoever installed the webhook.

    Attributes:
        default_mode: The mode of a namespace without a label, or with one that is not a mode.
        count_quota: Whether `limits.<count name>` keys are enforced; HAMi documents them and enforces none.
        require_cores: Whether a container with cards but no share of their cores is refused where a core quota applies.
        warn_at: Percentages of a limit; an admission that passes one answers with a warning.
        assumed_card_memory_mib: Card size by device family, for requests that must be sized while no card is known.
        hami_compat: HAMi's laxness in one switch: pending pods count 0, unsized requests and other schedulers' pods
        pass.
        scheduler_name: The name of HAMi's scheduler.
        overwrite_default_scheduler: Whether HAMi takes pods of `default-scheduler` over (its own default).
        trusted_users: User names that may set the annotations HAMi's components own.
        enforce_updates: Whether a forged update is refused; until then it is let through with a warning, so that the
            trusted users can be found out.
        lookup_after_s: Age from which an admission whose pod was not seen is looked up before it makes anyone be
        refused.
    """

    default_mode: Mode = Mode.ENFORCE
    count_quota: bool = True
    require_cores: bool = False
    warn_at: tuple[int, ...] = (80, 90)
    assumed_card_memory_mib: Mapping[str, int] = field(default_factory=dict)
    hami_compat: bool = False
    scheduler_name: str = "hami-scheduler"
    overwrite_default_scheduler: bool = True
    trusted_users: frozenset[str] = frozenset()
    enforce_updates: bool = False
    lookup_after_s: float = 10.0

    def mode(self, label: str | None) -> Mode:
        """Return the mode that a namespace's label asks for, or the default."""
        return _MODES.get(label or "", self.default_mode)

    def is_hami_scheduled(self, scheduler_name: str | None) -> bool:
        """Return whether HAMi's own webhook takes a pod with this scheduler name.

        Source: HAMi pkg/scheduler/webhook.go.
        """
        if not scheduler_name or scheduler_name == self.scheduler_name:
            return True
        return scheduler_name == "default-scheduler" and self.overwrite_default_scheduler
