"""The serving pair as a server uses it: one TLS context that follows every change of the files.

Files may come from a mounted kubernetes.io/tls Secret, from cert-manager, or from `directory`; who writes
them does not matter here. Judging their age or names is the business of `authority`.
"""

import hashlib
import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

from certs.authority import Certificate, CertificateError, KeyPair, read_certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """A changed pair was found and serves from now on."""

    certificate: Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """The pair on disk is the one that serves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The pair on disk cannot be used yet; the earlier one goes on serving."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """One pair in a context of its own, which nobody changes after it was built."""

    context: ssl.SSLContext
    certificate: Certificate
    digest: bytes


class CertificateSource:
    """Serves a certificate and key from disk, and follows their renewal.

    `context` is built once and stays the same object, so a server may keep it for good. It holds no
    certificate: in each handshake it hands the connection over to the context of the pair that was loaded
    last. Connections that are open keep what they shook hands with, and none is dropped.

    Loading a new pair into the live context would be shorter, and is not safe: OpenSSL does not lock a
    context, and `load_cert_chain` lets other threads run. Eight threads shaking hands on Python 3.11 and
    OpenSSL 3.0 while a ninth reloaded ended in a segmentation fault within seconds (TLS 1.3), or two
    handshakes out of three met the new certificate before its key and failed with "no shared cipher" (TLS
    1.2).

    Threads: everything here may be called from any thread. `poll` is serialised by a lock for which neither a
    handshake nor a reader of `certificate` ever waits. No thread is started; the owner of the process polls.

    Source: cert-manager, pkg/server/tls/source.go, where Go's `GetCertificate` does the handing over.
    """

    def __init__(self, certificate_path: Path, key_path: Path) -> None:
        """Load the pair for the first time; CertificateError says why it cannot be served."""
        self._certificate_path = certificate_path
        self._key_path = key_path
        self._polling = threading.Lock()
        self._loaded = self._load(self._read())
        self._context = _server_context()
        self._context.sni_callback = self._hand_over

    @property
    def context(self) -> ssl.SSLContext:
        """The context to serve with: TLS 1.2 or later, HTTP/1.1."""
        return self._context

    @property
    def certificate(self) -> Certificate:
        """What new handshakes are shown."""
        return self._loaded.certificate

    def poll(self) -> Reloaded | Unchanged | Failed:
        """Look at the files, and serve what they hold if it changed and is a matching pair.

        Both files are read each time and compared by digest. They are a few kilobytes, and their stat is no
        proof: a file rewritten within one tick of the clock keeps its time, and inode numbers are used again.
        What failed is tried again at the next poll.
        """
        with self._polling:
            try:
                pair = self._read()
                if _digest(pair) == self._loaded.digest:
                    return Unchanged()
                loaded = self._load(pair)
            except CertificateError as error:
                return Failed(reason=str(error))
            self._loaded = loaded
            return Reloaded(certificate=loaded.certificate)

    def _hand_over(self, connection: ssl.SSLObject, _server_name: str | None, _context: ssl.SSLContext) -> None:
        """Give a connection the current pair; OpenSSL asks even if the client sent no server name."""
        connection.context = self._loaded.context

    def _read(self) -> KeyPair:
        try:
            return KeyPair(
                certificate_pem=self._certificate_path.read_bytes(),
                key_pem=self._key_path.read_bytes(),
            )
        except OSError as error:
            raise CertificateError(f"cannot read {error.filename}: {error.strerror}") from error

    def _load(self, pair: KeyPair) -> _Loaded:
        """Return `pair` in a context of its own, or raise CertificateError if it must not serve."""
        certificate = read_certificate(pair.certificate_pem)
        context = _server_context()
        try:
            context.load_cert_chain(self._certificate_path, self._key_path, password=_no_password)
        except ssl.SSLError as error:
            raise CertificateError(_describe(error)) from error
        except OSError as error:
            raise CertificateError(f"cannot read the certificate or key: {error.strerror}") from error
        # OpenSSL read the files by itself. Only if they are still what we read do we know what it loaded.
        if self._read() != pair:
            raise CertificateError("the certificate and key changed while they were read")
        return _Loaded(context=context, certificate=certificate, digest=_digest(pair))


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _digest(pair: KeyPair) -> bytes:
    """Return what tells one pair from another, so that the key itself need not be remembered."""
    return hashlib.sha256(
        hashlib.sha256(pair.certificate_pem).digest() + hashlib.sha256(pair.key_pem).digest()
    ).digest()


def _no_password() -> str:
    """Refuse an encrypted key. Without this OpenSSL would ask for its password on the terminal, and wait."""
    raise CertificateError("the key of the certificate is encrypted")


def _describe(error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key does not match the certificate"
    return f"the certificate or key cannot be loaded: {error.reason or 'not PEM'}"
