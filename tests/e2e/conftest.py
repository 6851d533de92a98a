"""Fixtures of the end-to-end tests: one control plane a session, one namespace a test.

Nothing here skips. If the programs are not there they are built, before the first test so that the time does
not count as that test's; the output shows more when `scripts/control-plane binaries` is called before pytest.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from control_plane import ControlPlane, binaries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kube_api import Api


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs if an end-to-end test is about to run."""
    here = Path(__file__).parent
    if not session.config.option.collectonly and any(here in item.path.parents for item in session.items):
        binaries()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane of this session, without a scheduler; its logs stay in pytest's own folders."""

    def end(signum: int, frame: object) -> None:
        pytest.exit("terminated", returncode=128 + signum)

    # The default action would end the processes too, by their parent's death, but leave the folder behind.
    before = signal.signal(signal.SIGTERM, end)
    try:
        with ControlPlane(logs=tmp_path_factory.mktemp("control-plane")) as plane:
            yield plane
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.fixture
def api(control_plane: ControlPlane) -> Api:
    """The API server as an administrator sees it."""
    return control_plane.admin


@pytest.fixture
def namespace(control_plane: ControlPlane) -> Iterator[str]:
    """A namespace of this test's own, in which pods can be created; deleted afterwards."""
    name = control_plane.create_namespace()
    yield name
    control_plane.delete_namespace(name)
