import os
import socket
import ssl
import threading

import pytest
from cryptography.hazmat.primitives import serialization
from tls_loopback import connected, echoed, serving, shown_serial, strict_client

from certs.authority import CertificateError, KeyPair, Lifetimes, issue_serving, read_certificate
from certs.source import CertificateSource, Failed, Reloaded, Unchanged


class SecretMount:
    """A directory as the kubelet mounts a Secret: the files are links through `..data`, which is swapped."""

    def __init__(self, directory):
        self._directory = directory
        self._versions = 0
        self.certificate_path = directory / "tls.crt"
        self.key_path = directory / "tls.key"

    def hold(self, certificate_pem: bytes, key_pem: bytes) -> None:
        """Swap in a new version of both files."""
        self._versions += 1
        version = self._directory / f"..2030_{self._versions}"
        version.mkdir()
        (version / "tls.crt").write_bytes(certificate_pem)
        (version / "tls.key").write_bytes(key_pem)
        next_data = self._directory / "..data_tmp"
        next_data.symlink_to(version.name)
        next_data.replace(self._directory / "..data")
        for path in (self.certificate_path, self.key_path):
            if not path.is_symlink():
                path.symlink_to(f"..data/{path.name}")

    def hold_pair(self, pair: KeyPair) -> None:
        """Swap in a pair."""
        self.hold(pair.certificate_pem, pair.key_pem)


@pytest.fixture(scope="module")
def pairs(ca, names, now) -> tuple[KeyPair, KeyPair]:
    """An old pair and its successor."""
    return issue_serving(ca, names, now, Lifetimes().serving), issue_serving(ca, names, now, Lifetimes().serving)


@pytest.fixture
def mount(tmp_path, pairs) -> SecretMount:
    mount = SecretMount(tmp_path)
    mount.hold_pair(pairs[0])
    return mount


@pytest.fixture
def source(mount) -> CertificateSource:
    return CertificateSource(mount.certificate_path, mount.key_path)


@pytest.fixture
def client(ca) -> ssl.SSLContext:
    return strict_client(ca.certificate_pem)


def serial(pair: KeyPair) -> int:
    return read_certificate(pair.certificate_pem).serial


# --- what is served


@pytest.mark.parametrize(
    "server_name",
    [
        pytest.param("hami-quota", id="the Service, from its own namespace"),
        pytest.param("hami-quota.kube-system", id="the Service, from another namespace"),
        pytest.param("hami-quota.kube-system.svc", id="the name that the API server calls"),
        pytest.param("hami-quota.kube-system.svc.cluster.local", id="the Service, in full"),
        pytest.param("localhost", id="this machine by name"),
        pytest.param("127.0.0.1", id="an IPv4 address, for which a client sends no server name"),
        pytest.param("::1", id="an IPv6 address"),
    ],
)
def test_strict_client_accepts_every_name(source, client, pairs, server_name):
    with serving(source.context) as port:
        assert shown_serial(port, client, server_name) == serial(pairs[0])


@pytest.mark.parametrize(
    "server_name",
    [
        pytest.param("hami-quota.default.svc", id="the Service of another namespace"),
        pytest.param("127.0.0.2", id="another address"),
    ],
)
def test_strict_client_refuses_another_name(source, client, server_name):
    with serving(source.context) as port, pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shown_serial(port, client, server_name)


@pytest.mark.parametrize(
    "version", [pytest.param(version, id=version.name) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)]
)
def test_tls_1_2_and_1_3_are_spoken(source, client, version):
    client.minimum_version = client.maximum_version = version

    with serving(source.context) as port, connected(port, client) as tls:
        assert tls.version() == version.name.replace("v1_", "v1.")
        assert tls.compression() is None
        assert echoed(tls, b"hello") == b"hello"


def test_nothing_older_than_tls_1_2_is_spoken(source):
    assert source.context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert source.context.options & ssl.OP_NO_COMPRESSION


@pytest.mark.parametrize(
    ("alpn", "want"),
    [
        pytest.param(("h2", "http/1.1"), "http/1.1", id="a client that prefers HTTP/2 gets HTTP/1.1"),
        pytest.param(("h2",), None, id="a client that knows only HTTP/2 is told nothing"),
    ],
)
def test_alpn_offers_http_1_1(source, ca, alpn, want):
    with serving(source.context) as port, connected(port, strict_client(ca.certificate_pem, alpn=alpn)) as tls:
        assert tls.selected_alpn_protocol() == want


def test_certificate_is_described_for_metrics(source, pairs, now):
    assert source.certificate == read_certificate(pairs[0].certificate_pem)
    assert source.certificate.not_after == now.replace(microsecond=0) + Lifetimes().serving


# --- following a change


def test_swapped_mount_shows_in_new_handshakes_and_open_connections_live_on(mount, source, client, pairs):
    context = source.context
    with serving(context) as port, connected(port, client) as early:
        assert echoed(early, b"before") == b"before"

        mount.hold_pair(pairs[1])
        assert shown_serial(port, client) == serial(pairs[0]), "nothing changes before a poll"
        assert source.poll() == Reloaded(certificate=read_certificate(pairs[1].certificate_pem))

        assert shown_serial(port, client) == serial(pairs[1])
        assert shown_serial(port, client, "127.0.0.1") == serial(pairs[1])
        assert echoed(early, b"after") == b"after"
        assert int(early.getpeercert()["serialNumber"], 16) == serial(pairs[0])
    assert source.context is context
    assert source.certificate.serial == serial(pairs[1])
    assert source.poll() == Unchanged()


def test_connection_that_began_before_a_change_and_shakes_hands_after_it_gets_the_new_pair(
    mount, source, client, pairs
):
    with serving(source.context) as port, socket.create_connection(("127.0.0.1", port)) as plain:
        mount.hold_pair(pairs[1])
        source.poll()

        with client.wrap_socket(plain, server_hostname="localhost") as tls:
            assert int(tls.getpeercert()["serialNumber"], 16) == serial(pairs[1])


def test_session_from_before_a_change_is_resumed_after_it(mount, source, client, pairs):
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with serving(source.context) as port:
        with connected(port, client) as tls:
            session = tls.session
        mount.hold_pair(pairs[1])
        source.poll()

        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            client.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
        ):
            assert tls.session_reused
            assert echoed(tls, b"again") == b"again"


def test_files_written_again_with_the_same_content_are_unchanged(mount, source, pairs):
    mount.hold_pair(pairs[0])

    assert source.poll() == Unchanged()


def test_file_rewritten_in_place_is_noticed_though_its_times_are_the_same(tmp_path, source, pairs):
    for path, content in (("tls.crt", pairs[1].certificate_pem), ("tls.key", pairs[1].key_pem)):
        before = (tmp_path / path).stat()
        (tmp_path / path).write_bytes(content)
        os.utime(tmp_path / path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert isinstance(source.poll(), Reloaded)


# --- what must not be served


def encrypted(key_pem: bytes) -> bytes:
    return serialization.load_pem_private_key(key_pem, password=None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


@pytest.mark.parametrize(
    ("spoil", "want_reason"),
    [
        pytest.param(
            lambda old, new: (new.certificate_pem, old.key_pem),
            "the key does not match the certificate",
            id="the key is still the old one",
        ),
        pytest.param(
            lambda old, new: (old.certificate_pem, new.key_pem),
            "the key does not match the certificate",
            id="the certificate is still the old one",
        ),
        pytest.param(
            lambda _, new: (b"", new.key_pem), "the certificate cannot be read", id="the certificate is empty"
        ),
        pytest.param(
            lambda _, new: (new.certificate_pem[:-60], new.key_pem),
            "the certificate cannot be read",
            id="the certificate is cut short",
        ),
        pytest.param(
            lambda _, new: (new.certificate_pem, b""),
            "the certificate or key cannot be loaded: not PEM",
            id="the key is empty",
        ),
        pytest.param(
            lambda _, new: (new.certificate_pem, new.key_pem[:-60]),
            "the certificate or key cannot be loaded: not PEM",
            id="the key is cut short",
        ),
        pytest.param(
            lambda _, new: (new.certificate_pem, encrypted(new.key_pem)),
            "the key of the certificate is encrypted",
            id="the key is encrypted, and nobody is asked for its password",
        ),
    ],
)
def test_pair_that_cannot_serve_is_left_alone_until_it_can(mount, source, client, pairs, *, spoil, want_reason):
    old, new = pairs
    with serving(source.context) as port:
        mount.hold(*spoil(old, new))

        assert source.poll() == Failed(reason=want_reason)
        assert source.poll() == Failed(reason=want_reason)
        assert shown_serial(port, client) == serial(old)
        assert source.certificate.serial == serial(old)

        mount.hold_pair(new)
        assert isinstance(source.poll(), Reloaded)
        assert shown_serial(port, client) == serial(new)


def test_missing_file_is_a_reason_and_its_return_is_no_change(mount, source):
    mount.key_path.rename(mount.key_path.with_suffix(".away"))
    assert source.poll() == Failed(reason=f"cannot read {mount.key_path}: No such file or directory")

    mount.key_path.with_suffix(".away").rename(mount.key_path)
    assert source.poll() == Unchanged()


def test_mount_swapped_while_it_is_read_is_loaded_at_the_next_poll(mount, source, pairs, monkeypatch):
    """What was read and what OpenSSL loaded could then differ, and a wrong serial number be reported."""
    old, new = pairs
    mount.hold_pair(new)
    straddling = [KeyPair(certificate_pem=old.certificate_pem, key_pem=new.key_pem), new]
    with monkeypatch.context() as patch:
        patch.setattr(source, "_read", lambda: straddling.pop(0))
        assert source.poll() == Failed(reason="the certificate and key changed while they were read")

    assert source.certificate.serial == serial(old)
    assert source.poll() == Reloaded(certificate=read_certificate(new.certificate_pem))


def test_file_that_goes_while_openssl_opens_it_is_a_reason(mount, source, pairs, monkeypatch):
    mount.key_path.unlink()
    monkeypatch.setattr(source, "_read", lambda: pairs[1])

    assert source.poll() == Failed(reason="cannot read the certificate or key: No such file or directory")


@pytest.mark.parametrize(
    ("certificate_name", "want_error"),
    [
        pytest.param("tls.key", "the certificate cannot be read", id="a file that holds no certificate"),
        pytest.param("absent.crt", "cannot read .*absent.crt: No such file", id="a file that is not there"),
    ],
)
def test_source_does_not_start_without_a_pair(tmp_path, mount, certificate_name, want_error):
    with pytest.raises(CertificateError, match=want_error):
        CertificateSource(tmp_path / certificate_name, mount.key_path)


# --- threads


def test_one_of_many_polls_at_once_reloads(mount, source, pairs):
    mount.hold_pair(pairs[1])
    start = threading.Barrier(8)
    results = []

    def poll() -> None:
        start.wait()
        results.append(source.poll())

    threads = [threading.Thread(target=poll) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(type(result).__name__ for result in results) == ["Reloaded"] + ["Unchanged"] * 7


def test_no_handshake_fails_while_pairs_change(mount, source, client, pairs):
    """Handshakes on many threads meet 100 changes, and each is shown one pair or the other, whole."""
    done = threading.Event()
    shown, failures = set(), []

    def shake_hands() -> None:
        while not done.is_set():
            try:
                shown.add(shaken_hands(source.context, client))
            except ssl.SSLError as error:
                failures.append(error)

    threads = [threading.Thread(target=shake_hands) for _ in range(8)]
    for thread in threads:
        thread.start()
    for turn in range(100):
        mount.hold_pair(pairs[(turn + 1) % 2])
        assert isinstance(source.poll(), Reloaded)
    done.set()
    for thread in threads:
        thread.join()

    assert failures == []
    assert shown == {serial(pair) for pair in pairs}


def shaken_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> int:
    """Shake hands in memory, and return the serial number that the client was shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_side = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    server_side = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [client_side, server_side]
    while waiting:
        side = waiting.pop(0)
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            waiting.append(side)
    return int(client_side.getpeercert()["serialNumber"], 16)
