"""Generators of claims, pods, allocations and events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builders import PodBuilder, pod
from hypothesis import strategies as st

from webhook.allocation import Allocated, encode_segments
from webhook.effective import Claim, ContainerKind

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn, SearchStrategy

NAMES = ("mem", "cores", "cards")
CARDS = ("GPU-0", "GPU-1", "GPU-2")

# Small figures meet each other; large ones pass 32 and 64 bits.
figures = st.integers(0, 9) | st.integers(0, 50_000) | st.integers(0, 2**70)


def amounts(keys: tuple[Any, ...] = NAMES) -> SearchStrategy[dict[Any, int]]:
    """Return amounts on some of the keys; a key that is absent and one that is 0 both occur."""
    return st.dictionaries(st.sampled_from(keys), figures, max_size=len(keys))


@st.composite
def claims(
    draw: DrawFn,
    keys: tuple[Any, ...] = NAMES,
    init_kinds: tuple[ContainerKind, ...] = (ContainerKind.INIT, ContainerKind.SIDECAR),
) -> list[Claim[Any]]:
    """Return the claims of a pod in declaration order: entries of `initContainers` in any order, then apps."""
    entries = draw(st.lists(st.tuples(st.sampled_from(init_kinds), amounts(keys)), max_size=6)) if init_kinds else []
    apps = draw(st.lists(amounts(keys), max_size=4))
    everyone = [*entries, *((ContainerKind.APP, asked) for asked in apps)]
    return [Claim(container=f"c{number}", kind=kind, amounts=asked) for number, (kind, asked) in enumerate(everyone)]


@st.composite
def asks(draw: DrawFn) -> dict[str, int]:
    """Return what a container asks for: nothing, or memory and perhaps cores on some cards."""
    if draw(st.booleans()) and draw(st.booleans()):
        return {}
    asked = {"gpu": draw(st.integers(1, 4)), "mem": draw(st.integers(1, 40_000))}
    if draw(st.booleans()):
        asked["cores"] = draw(st.integers(0, 100))
    return asked


@st.composite
def pods(draw: DrawFn) -> PodBuilder:
    """Return a pod with init containers, sidecars and apps in any order."""
    subject = pod("p")
    for number, kind in enumerate(draw(st.lists(st.sampled_from(("init", "sidecar")), max_size=4))):
        subject = getattr(subject, kind)(f"{kind}{number}", **draw(asks()))
    for number in range(draw(st.integers(1, 3))):
        subject = subject.app(f"app{number}", **draw(asks()))
    return subject


@st.composite
def allocations(draw: DrawFn, subject: PodBuilder) -> str:
    """Return an allocation annotation for a pod: some cards to each container that asks, and to others perhaps."""
    device = st.builds(
        Allocated,
        uuid=st.sampled_from(CARDS),
        type=st.just("NVIDIA"),
        memory=st.integers(0, 40_000),
        cores=st.integers(0, 100),
    )
    least = [1 if container.limits else 0 for container in subject.build().containers()]
    return encode_segments([draw(st.lists(device, min_size=count, max_size=3)) for count in least])


@st.composite
def statuses(draw: DrawFn, subject: PodBuilder) -> dict[str, Any]:
    """Return init container statuses, some missing, some failed."""
    names = [container.name for container in subject.build().init_containers]
    state = st.sampled_from((0, 0, 0, 1, 137, "running", "waiting", None))
    return {name: draw(state) for name in names if draw(st.integers(0, 3))}


# What a container may ask for, as limits, figures that cannot be used among them; few values, so that they meet.
_asked = {
    "nvidia.com/gpu": st.sampled_from(("1", "1", "2", "3", "0")),
    "nvidia.com/gpumem": st.sampled_from(("4000", "700", "1k", "1", "0")),
    "nvidia.com/gpumem-percentage": st.sampled_from(("25", "33", "100", "0", "101")),
    "nvidia.com/gpucores": st.sampled_from(("10", "50", "100", "0", "101")),
    "cpu": st.just("1"),
}
_plain = {name: _asked[name] for name in ("nvidia.com/gpumem", "nvidia.com/gpucores")}
limits = st.one_of(
    st.just({}),
    st.fixed_dictionaries({}, optional=_asked),
    st.fixed_dictionaries(_plain | {"nvidia.com/gpu": st.sampled_from(("1", "2"))}),
    st.fixed_dictionaries({"nvidia.com/gpu": st.just("1")}, optional=_plain),
    st.fixed_dictionaries({"nvidia.com/gpumem-percentage": st.sampled_from(("50", "33", "100"))}),
)


@st.composite
def pod_specs(draw: DrawFn) -> dict[str, Any]:
    """Return the spec of a pod, in or out of any scope."""
    spec: dict[str, Any] = {}
    kinds = draw(st.lists(st.sampled_from(("init", "sidecar")), max_size=3))
    for number, kind in enumerate([*kinds, *["app"] * draw(st.integers(1, 2))]):
        container: dict[str, Any] = {"name": f"{kind}{number}", "resources": {"limits": draw(limits)}}
        if kind == "sidecar":
            container["restartPolicy"] = "Always"
        spec.setdefault("containers" if kind == "app" else "initContainers", []).append(container)
    if draw(st.booleans()):
        spec["activeDeadlineSeconds"] = 60
    if priority := draw(st.sampled_from(("", "batch", "prod"))):
        spec["priorityClassName"] = priority
    return spec


@st.composite
def quota_specs(draw: DrawFn) -> dict[str, Any]:
    """Return the spec of a quota: limits that bind, that do not and that cannot be read, with scopes or without."""
    figure = st.sampled_from(("100000", "9k", "5500", "4000", "150", "3", "2", "0", "1.5"))
    keys = ("limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores", "limits.cpu")
    spec: dict[str, Any] = {"hard": draw(st.dictionaries(st.sampled_from(keys), figure, min_size=1))}
    scopes = st.sampled_from(("Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass"))
    if not draw(st.integers(0, 2)):
        spec["scopes"] = [draw(scopes)]
    if not draw(st.integers(0, 2)):
        operator = draw(st.sampled_from(("In", "NotIn", "Exists", "DoesNotExist")))
        values = {"values": draw(st.sampled_from((["batch"], ["batch", "prod"])))} if "In" in operator else {}
        expression = {"scopeName": "PriorityClass", "operator": operator} | values
        spec["scopeSelector"] = {"matchExpressions": [expression]}
    return spec
