import datetime as dt
import os
import shutil
import stat
import threading

import pytest
from tls_loopback import serving, shown_serial, strict_client

from certs import directory as certs_directory
from certs.authority import CertificateError, KeyPair, Lifetimes, check_pair, issue_ca, issue_serving
from certs.directory import Issued, Kept, ensure_pair, write_pair
from certs.names import Names
from certs.source import CertificateSource, Reloaded

DAY = dt.timedelta(days=1)
LIFETIMES = Lifetimes(ca=300 * DAY, serving=90 * DAY)


@pytest.fixture
def pair(ca, names, now) -> KeyPair:
    return issue_serving(ca, names, now, DAY)


@pytest.fixture
def successor(ca, names, now) -> KeyPair:
    """Another pair of the same CA."""
    return issue_serving(ca, names, now, DAY)


@pytest.fixture
def tls(tmp_path):
    """Where the pair goes: a directory that does not exist yet."""
    return tmp_path / "tls"


@pytest.fixture
def written(tls, ca, pair):
    """A directory in which `pair` was written."""
    write_pair(tls, pair, ca_pem=ca.certificate_pem)
    return tls


@pytest.fixture
def ensure(tls, names, now):
    """Call `ensure_pair` some days from now."""

    def ensure(days: float = 0, **kwargs) -> Issued | Kept:
        kwargs.setdefault("lifetimes", LIFETIMES)
        return ensure_pair(tls, kwargs.pop("names", names), now + days * DAY, **kwargs)

    return ensure


def contents(directory) -> dict[str, bytes]:
    """Return what is in a directory, by path, whichever version it is in."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and ".." not in str(path.relative_to(directory))
    }


def mode(path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def held_pair(directory) -> KeyPair:
    return KeyPair(certificate_pem=(directory / "tls.crt").read_bytes(), key_pem=(directory / "tls.key").read_bytes())


# --- writing


@pytest.fixture(params=[pytest.param(mask, id=f"umask {mask:03o}") for mask in (0o000, 0o022, 0o077, 0o177)])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_modes_do_not_depend_on_the_umask(tmp_path, umask, names, now):
    directory = tmp_path / "made" / "tls"

    ensure_pair(directory, names, now)

    assert {name: mode(directory / name) for name in contents(directory)} == {
        "ca.crt": 0o644,
        "tls.crt": 0o644,
        "tls.key": 0o600,
        "authority/ca.crt": 0o644,
        "authority/ca.key": 0o600,
    }
    assert [mode(directory.parent), mode(directory), mode(directory / "authority")] == [0o700] * 3


def test_no_file_is_open_to_others_while_it_is_written(ensure, monkeypatch):
    seen = []

    def fchmod(descriptor: int, mode: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real_fchmod(descriptor, mode)

    real_fchmod = os.fchmod
    monkeypatch.setattr(os, "fchmod", fchmod)
    before = os.umask(0)
    try:
        ensure()
    finally:
        os.umask(before)

    assert seen == [0o600] * 5


def test_existing_directory_keeps_its_mode_but_that_of_the_authority_is_closed(tls, ensure):
    tls.mkdir()
    (tls / "authority").mkdir()
    tls.chmod(0o755)
    (tls / "authority").chmod(0o755)

    ensure()

    assert mode(tls) == 0o755
    assert mode(tls / "authority") == 0o700


@pytest.fixture
def other_ca(now) -> KeyPair:
    return issue_ca(now, DAY)


@pytest.fixture
def other_pair(other_ca, names, now) -> KeyPair:
    """A pair of another CA."""
    return issue_serving(other_ca, names, now, DAY)


def test_the_three_files_change_in_one_step(written, other_ca, other_pair, monkeypatch):
    """After each single step on the file system, what can be read is a matching pair."""
    tls = written
    steps = []

    def replace(self, target):
        real_replace(self, target)
        check_pair(held_pair(tls), ca_pem=(tls / "ca.crt").read_bytes())
        steps.append(target.name)

    real_replace = type(tls).replace
    monkeypatch.setattr(type(tls), "replace", replace)
    write_pair(tls, other_pair, ca_pem=other_ca.certificate_pem, replace_ca=True)

    assert steps == ["..data"]
    assert (tls / "ca.crt").read_bytes() == other_ca.certificate_pem


def test_write_that_fails_leaves_the_old_pair_and_no_trace(written, pair, successor, ca, monkeypatch):
    before = sorted(written.iterdir())

    def fsync(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="No space left"):
        write_pair(written, successor, ca_pem=ca.certificate_pem)

    assert held_pair(written) == pair
    assert sorted(written.iterdir()) == before


def test_keys_of_earlier_and_of_interrupted_runs_are_removed(written, successor, ca):
    tls = written
    (tls / "..version_cut_short").mkdir()
    (tls / "..version_cut_short" / "tls.key").write_text("left behind")
    (tls / "..data_next").symlink_to("nowhere")

    write_pair(tls, successor, ca_pem=ca.certificate_pem)

    assert held_pair(tls) == successor
    assert len(list(tls.glob("..version_*"))) == 1
    assert not os.path.lexists(tls / "..data_next")


def test_plain_files_of_somebody_else_give_way(tls, ca, pair):
    tls.mkdir()
    (tls / "tls.crt").write_text("plain")
    (tls / "tls.key").write_text("plain")
    (tls / "notes.txt").write_text("kept")

    write_pair(tls, pair, ca_pem=ca.certificate_pem)

    assert held_pair(tls) == pair
    assert (tls / "notes.txt").read_text() == "kept"


def test_pair_is_written_only_if_its_parts_belong_together(tls, ca, pair, successor, other_ca):
    crossed = KeyPair(certificate_pem=pair.certificate_pem, key_pem=successor.key_pem)

    with pytest.raises(CertificateError, match="the key does not match"):
        write_pair(tls, crossed, ca_pem=ca.certificate_pem)
    with pytest.raises(CertificateError, match="not signed by the CA"):
        write_pair(tls, pair, ca_pem=other_ca.certificate_pem)
    assert not tls.exists()


def test_another_ca_is_replaced_only_if_asked(written, pair, other_ca, other_pair):
    with pytest.raises(CertificateError, match=r"ca\.crt holds another CA"):
        write_pair(written, other_pair, ca_pem=other_ca.certificate_pem)
    assert held_pair(written) == pair

    write_pair(written, other_pair, ca_pem=other_ca.certificate_pem, replace_ca=True)
    assert held_pair(written) == other_pair
    assert (written / "ca.crt").read_bytes() == other_ca.certificate_pem


def test_bundle_that_still_holds_the_old_ca_replaces_nothing(written, ca, other_ca, other_pair):
    write_pair(written, other_pair, ca_pem=other_ca.certificate_pem + ca.certificate_pem)

    assert held_pair(written) == other_pair


# --- issuing what is missing or due


def test_first_run_issues_a_ca_and_a_pair_and_the_next_writes_nothing(tls, ensure):
    first = ensure()
    before = contents(tls)
    inode = (tls / "tls.key").stat().st_ino

    second = ensure()

    assert isinstance(first, Issued)
    assert (first.reason, first.has_new_ca) == ("there is no CA yet", True)
    assert isinstance(second, Kept)
    assert second.certificate == first.certificate
    assert second.reason.startswith("the certificate is valid until ")
    assert contents(tls) == before
    assert (tls / "tls.key").stat().st_ino == inode
    check_pair(held_pair(tls), ca_pem=before["ca.crt"])


@pytest.mark.parametrize(
    ("spoil", "days", "want_reason"),
    [
        pytest.param(
            lambda tls: (tls / "tls.key").unlink(),
            0,
            "ca.crt, tls.crt and tls.key are not all there",
            id="the key is missing",
        ),
        pytest.param(
            lambda tls: (tls / "ca.crt").unlink(),
            0,
            "ca.crt, tls.crt and tls.key are not all there",
            id="the CA for clients is missing",
        ),
        pytest.param(
            lambda tls: (tls / "tls.key").write_bytes((tls / "authority" / "ca.key").read_bytes()),
            0,
            "the key does not match the certificate",
            id="the key is that of something else",
        ),
        pytest.param(lambda _: None, 61, "in the last third of its life", id="it is late in its life"),
        pytest.param(lambda _: None, 91, "the certificate expired at ", id="it has expired"),
    ],
)
def test_pair_that_is_due_is_issued_anew_by_the_same_ca(tls, ensure, spoil, days, want_reason):
    ensure()
    ca_before = contents(tls)["authority/ca.crt"]
    spoil(tls)

    issued = ensure(days)

    assert isinstance(issued, Issued)
    assert want_reason in issued.reason
    assert not issued.has_new_ca
    assert contents(tls)["authority/ca.crt"] == contents(tls)["ca.crt"] == ca_before
    check_pair(held_pair(tls), ca_pem=ca_before)
    assert isinstance(ensure(days), Kept)


def test_another_name_is_added_by_the_same_ca(ensure):
    ensure()
    more = Names(dns_names=("hami-quota", "gpu.example"))

    issued = ensure(names=more)

    assert isinstance(issued, Issued)
    assert (issued.reason, issued.has_new_ca) == ("the certificate lacks gpu.example", False)
    assert isinstance(ensure(names=more), Kept)


def test_ca_late_in_its_life_is_followed_by_a_new_one_and_stays_trusted(tls, ensure):
    """Clients with the new bundle accept the old pair and the new one, so replicas may reload when they will."""
    ensure()
    old = contents(tls)
    old_pair = held_pair(tls)

    issued = ensure(201)

    new = contents(tls)
    assert isinstance(issued, Issued)
    assert issued.has_new_ca
    assert issued.reason.endswith("which is in the last third of its life")
    assert new["authority/ca.crt"] != old["authority/ca.crt"]
    assert new["ca.crt"] == new["authority/ca.crt"] + old["ca.crt"]
    check_pair(old_pair, ca_pem=new["ca.crt"])
    check_pair(held_pair(tls), ca_pem=new["authority/ca.crt"])

    assert isinstance(ensure(201), Kept)
    assert isinstance(ensure(301), Issued), "the pair is due, and the first CA expired by now"
    assert contents(tls)["ca.crt"] == new["authority/ca.crt"]


def test_strict_client_verifies_against_a_bundle_of_two_cas_of_the_same_name(tls, ensure):
    ensure(-250, lifetimes=Lifetimes(ca=300 * DAY, serving=400 * DAY))
    source = CertificateSource(tls / "tls.crt", tls / "tls.key")
    with serving(source.context) as port:
        old = source.certificate.serial
        issued = ensure(lifetimes=Lifetimes(ca=300 * DAY, serving=90 * DAY))
        client = strict_client((tls / "ca.crt").read_bytes())

        assert shown_serial(port, client) == old
        assert source.poll() == Reloaded(certificate=issued.certificate)
        assert shown_serial(port, client) == issued.certificate.serial


def test_interrupted_change_of_the_ca_is_completed_by_the_next_run(tls, ensure, monkeypatch):
    ensure()
    old = contents(tls)

    def write_serving(*_args) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(certs_directory, "_write_serving", write_serving)
        with pytest.raises(KeyboardInterrupt):
            ensure(201)

    issued = ensure(201)

    new = contents(tls)
    assert isinstance(issued, Issued)
    assert issued.reason == "ca.crt lacks the CA that signs"
    assert new["ca.crt"] == new["authority/ca.crt"] + old["ca.crt"]
    check_pair(held_pair(tls), ca_pem=new["authority/ca.crt"])


def test_new_ca_on_demand_takes_the_old_one_out_of_the_bundle(tls, ensure):
    ensure()
    old = contents(tls)

    issued = ensure(replace_ca=True)

    new = contents(tls)
    assert isinstance(issued, Issued)
    assert (issued.reason, issued.has_new_ca) == ("a new CA was asked for", True)
    assert new["ca.crt"] == new["authority/ca.crt"] != old["ca.crt"]
    check_pair(held_pair(tls), ca_pem=new["ca.crt"])


@pytest.mark.parametrize(
    ("spoil", "days", "want_error"),
    [
        pytest.param(
            lambda tls: (tls / "authority" / "ca.key").unlink(),
            70,
            "in the last third of its life, but .*authority does not hold the CA and its key",
            id="the pair is due and the key of the CA is gone",
        ),
        pytest.param(
            lambda tls: shutil.rmtree(tls / "authority"),
            70,
            "in the last third of its life, but .*authority does not hold the CA and its key",
            id="the pair is due and the authority is kept elsewhere",
        ),
        pytest.param(
            lambda tls: (tls / "authority" / "ca.crt").unlink(),
            0,
            r"authority holds ca\.key without ca\.crt",
            id="the key of a CA is there without its certificate",
        ),
        pytest.param(
            lambda tls: (tls / "authority" / "ca.crt").write_text("nonsense"),
            0,
            "the CA cannot be read",
            id="the CA is unreadable",
        ),
        pytest.param(
            lambda tls: (tls / "ca.crt").write_text("nonsense"),
            0,
            "the CA bundle cannot be read",
            id="the bundle is unreadable",
        ),
        pytest.param(
            lambda tls: (tls / "authority" / "ca.key").write_bytes((tls / "tls.key").read_bytes()),
            70,
            "the key does not match the CA",
            id="the pair is due and the key of the CA is that of something else",
        ),
        pytest.param(lambda _: None, -1, "is the clock right", id="the clock is behind the CA"),
    ],
)
def test_ca_that_cannot_be_used_is_replaced_only_if_asked(tls, ensure, spoil, days, want_error):
    ensure()
    spoil(tls)
    before = contents(tls)

    with pytest.raises(CertificateError, match=want_error):
        ensure(days)
    assert contents(tls) == before

    assert isinstance(ensure(days, replace_ca=True), Issued)
    assert isinstance(ensure(days), Kept)


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda tls: (tls / "authority" / "ca.key").unlink(), id="the key of the CA is kept elsewhere"),
        pytest.param(lambda tls: shutil.rmtree(tls / "authority"), id="the CA is somebody else's"),
    ],
)
def test_good_pair_is_kept_without_the_key_of_its_ca(tls, ensure, spoil):
    ensure()
    spoil(tls)

    assert isinstance(ensure(), Kept)


def test_of_many_runs_at_once_one_issues(tls, ensure):
    start = threading.Barrier(16)
    results = []

    def run() -> None:
        start.wait()
        results.append(ensure())

    threads = [threading.Thread(target=run) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(type(result).__name__ for result in results) == ["Issued"] + ["Kept"] * 15
    assert len({result.certificate.serial for result in results}) == 1
