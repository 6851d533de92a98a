"""From the configuration to the families in force."""

from __future__ import annotations

import pytest
from builders import CORES, COUNT, MEMORY, PERCENT, PodBuilder, backends, pod

from webhook.devices.registry import asks_for_managed, load_backends, managed_resources
from webhook.errors import DeviceConfigError


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("hami: {}\n", id="no block that is known"),
        pytest.param("nvidia:\n", id="a block without keys"),
        pytest.param("nvidia: {}\n", id="an empty block"),
        pytest.param("nvidia: {memoryFactor: 1}\n", id="a block without names"),
    ],
)
def test_a_configuration_that_puts_no_family_in_force_stops_the_start(text: str) -> None:
    with pytest.raises(DeviceConfigError, match="configures no device family: it needs one of nvidia"):
        load_backends(text)


def test_managed_are_the_resources_a_quota_or_a_size_depends_on() -> None:
    assert managed_resources(backends()) == {COUNT, MEMORY, PERCENT, CORES}


@pytest.mark.parametrize(
    ("subject", "want"),
    [
        pytest.param(pod().app("a"), False, id="a pod without resources"),
        pytest.param(pod().app("a", limits={"cpu": "1"}), False, id="other resources"),
        pytest.param(pod().app("a", limits={"nvidia.com/priority": "1"}), False, id="a priority alone"),
        pytest.param(pod().app("a").app("b", mem=1), True, id="the second app"),
        pytest.param(pod().init("i", gpu=1).app("a"), True, id="an init container"),
        pytest.param(pod().sidecar("s", pct=1).app("a"), True, id="a sidecar"),
        pytest.param(pod().app("a", requests={CORES: "1"}), True, id="in requests alone"),
        pytest.param(pod().app("a", limits={COUNT: "0"}), True, id="a count of 0, which names it all the same"),
    ],
)
def test_a_pod_is_ours_when_a_container_names_a_managed_resource(subject: PodBuilder, want: bool) -> None:
    assert asks_for_managed(subject.build(), managed_resources(backends())) is want
