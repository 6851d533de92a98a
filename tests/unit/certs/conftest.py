"""What every test of `certs` starts from. Keys are made for each run; none is kept in the repository."""

import datetime as dt

import pytest

from certs.authority import KeyPair, Lifetimes, issue_ca
from certs.names import Names


@pytest.fixture(scope="session")
def now() -> dt.datetime:
    """The time of the run: certificates made from it verify against the real clock."""
    return dt.datetime.now(dt.UTC)


@pytest.fixture(scope="session")
def ca(now) -> KeyPair:
    return issue_ca(now, Lifetimes().ca)


@pytest.fixture(scope="session")
def names() -> Names:
    return Names.of_service("hami-quota", "kube-system", loopback=True)
