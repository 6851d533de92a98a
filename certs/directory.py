"""The serving pair on disk: writes it, and issues what is missing or due.

The files have the names and the layout of a mounted kubernetes.io/tls Secret, so that a pair changes in one
step and is read in one way, wherever it comes from:

    directory/
      ca.crt   ->  ..data/ca.crt    the CA bundle for clients; an earlier CA stays in it until it expires
      tls.crt  ->  ..data/tls.crt   the serving certificate
      tls.key  ->  ..data/tls.key   its key, mode 0600
      ..data   ->  ..version_x      renaming this link replaces all three at once
      authority/                    mode 0700, laid out likewise: ca.crt and ca.key, which only issuing needs

What makes certificates and judges them is `authority`; what serves them is `source`.
"""

import contextlib
import datetime as dt
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from certs.authority import (
    DEFAULT_LIFETIMES,
    Certificate,
    CertificateError,
    KeyPair,
    Lifetimes,
    Renewal,
    ca_needs_renewal,
    check_pair,
    issue_ca,
    issue_serving,
    merge_bundle,
    missing_authorities,
    needs_renewal,
    read_certificate,
)
from certs.names import Names

CA_CERTIFICATE = "ca.crt"
CA_KEY = "ca.key"
CERTIFICATE = "tls.crt"
KEY = "tls.key"
AUTHORITY = "authority"

# Names that begin with two dots are not content: that is the kubelet's convention for mounted volumes.
_DATA = "..data"
_DATA_NEXT = "..data_next"
_VERSION_PREFIX = "..version_"

_PUBLIC_FILE = 0o644
_PRIVATE_FILE = 0o600
_PRIVATE_DIRECTORY = 0o700
# A finished version is as open as the directory around it; the modes inside it protect the keys.
_VERSION_DIRECTORY = 0o755


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """A new serving pair was written; if `has_new_ca`, clients need the new `ca.crt` as well."""

    reason: str
    certificate: Certificate
    has_new_ca: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The pair is good; nothing was written."""

    reason: str
    certificate: Certificate


def write_pair(directory: Path, pair: KeyPair, *, ca_pem: bytes, replace_ca: bool = False) -> None:
    """Write `ca.crt`, `tls.crt` and `tls.key`, all in one step; a missing directory is made with mode 0700.

    Raises:
        CertificateError: the pair does not match, or none of `ca_pem` signed it; or a CA in the existing
            `ca.crt` is not in `ca_pem`, and `replace_ca` is not set. Nothing was written.
        OSError: the files cannot be written.
    """
    check_pair(pair, ca_pem=ca_pem)
    with _locked(directory):
        existing_pem = _read_optional(directory / CA_CERTIFICATE)
        if existing_pem is not None and not replace_ca and missing_authorities(existing_pem, bundle_pem=ca_pem):
            raise CertificateError(f"{directory / CA_CERTIFICATE} holds another CA")
        _write_serving(directory, pair, ca_pem)


def ensure_pair(
    directory: Path,
    names: Names,
    now: dt.datetime,
    *,
    lifetimes: Lifetimes = DEFAULT_LIFETIMES,
    replace_ca: bool = False,
) -> Issued | Kept:
    """Make sure that `directory` holds a good serving pair for `names`, issuing only what is missing or due.

    A good CA is kept. One in the last third of its life is followed by a new one, and stays in `ca.crt`
    until it expires. `replace_ca` issues a new CA whatever is there, and takes the old one out of `ca.crt`:
    for a CA that is lost, or not to be trusted any more. Runs at the same time take turns; the later keep
    what the first wrote.

    Raises:
        CertificateError: a CA is there but cannot be used, or the pair is due and the key of its CA is not
            there to sign a new one. Nothing was written.
        OSError: the files cannot be read or written.
    """
    with _locked(directory):
        ca_reason = "a new CA was asked for" if replace_ca else _ca_due(directory, now)
        if ca_reason is None:
            renewal = _serving_due(directory, names, now)
            if not renewal:
                certificate = read_certificate((directory / CERTIFICATE).read_bytes())
                return Kept(reason=renewal.reason, certificate=certificate)
            reason = renewal.reason
            ca = _read_authority(directory, reason)
        else:
            reason = ca_reason
            ca = issue_ca(now, lifetimes.ca)
        earlier_pem = None if replace_ca else _read_optional(directory / CA_CERTIFICATE)
        bundle_pem = merge_bundle(ca.certificate_pem, earlier_pem or ca.certificate_pem, now)
        pair = issue_serving(ca, names, now, lifetimes.serving)
        if ca_reason is not None:
            _write_authority(directory, ca)
        _write_serving(directory, pair, bundle_pem)
    return Issued(
        reason=reason,
        certificate=read_certificate(pair.certificate_pem),
        has_new_ca=ca_reason is not None,
    )


def _ca_due(directory: Path, now: dt.datetime) -> str | None:
    """Return why a new CA is to be issued, or None if there is one to stay with."""
    authority_pem = _read_optional(directory / AUTHORITY / CA_CERTIFICATE)
    if authority_pem is not None:
        renewal = ca_needs_renewal(authority_pem, now)
        return renewal.reason if renewal else None
    if os.path.lexists(directory / AUTHORITY / CA_KEY):
        raise CertificateError(f"{directory / AUTHORITY} holds {CA_KEY} without {CA_CERTIFICATE}")
    return None if os.path.lexists(directory / CA_CERTIFICATE) else "there is no CA yet"


def _serving_due(directory: Path, names: Names, now: dt.datetime) -> Renewal:
    """Say whether the pair in `directory` must be replaced, its CA being one to stay with."""
    bundle_pem = _read_optional(directory / CA_CERTIFICATE)
    certificate_pem = _read_optional(directory / CERTIFICATE)
    key_pem = _read_optional(directory / KEY)
    if bundle_pem is None or certificate_pem is None or key_pem is None:
        return Renewal(is_due=True, reason=f"{CA_CERTIFICATE}, {CERTIFICATE} and {KEY} are not all there")
    # Without an authority the CA is somebody else's, or its key is kept elsewhere: the bundle is all we know.
    authority_pem = _read_optional(directory / AUTHORITY / CA_CERTIFICATE) or bundle_pem
    if missing_authorities(authority_pem, bundle_pem=bundle_pem):
        return Renewal(is_due=True, reason=f"{CA_CERTIFICATE} lacks the CA that signs")
    pair = KeyPair(certificate_pem=certificate_pem, key_pem=key_pem)
    return needs_renewal(pair, names, ca_pem=authority_pem, now=now)


def _read_authority(directory: Path, reason: str) -> KeyPair:
    certificate_pem = _read_optional(directory / AUTHORITY / CA_CERTIFICATE)
    key_pem = _read_optional(directory / AUTHORITY / CA_KEY)
    if certificate_pem is None or key_pem is None:
        raise CertificateError(f"{reason}, but {directory / AUTHORITY} does not hold the CA and its key")
    return KeyPair(certificate_pem=certificate_pem, key_pem=key_pem)


def _write_authority(directory: Path, ca: KeyPair) -> None:
    authority = directory / AUTHORITY
    _make_directory(authority)
    authority.chmod(_PRIVATE_DIRECTORY)
    _publish(
        authority,
        {CA_CERTIFICATE: (ca.certificate_pem, _PUBLIC_FILE), CA_KEY: (ca.key_pem, _PRIVATE_FILE)},
    )


def _write_serving(directory: Path, pair: KeyPair, ca_pem: bytes) -> None:
    _publish(
        directory,
        {
            CA_CERTIFICATE: (ca_pem, _PUBLIC_FILE),
            CERTIFICATE: (pair.certificate_pem, _PUBLIC_FILE),
            KEY: (pair.key_pem, _PRIVATE_FILE),
        },
    )


def _publish(directory: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Replace all `files` (content and mode by name) in one step; the caller holds the lock.

    Source: kubernetes, pkg/volume/util/atomic_writer.go `AtomicWriter`, which fills mounted Secrets.
    """
    version = Path(tempfile.mkdtemp(prefix=_VERSION_PREFIX, dir=directory))
    try:
        version.chmod(_PRIVATE_DIRECTORY)
        for name, (content, mode) in files.items():
            _create(version / name, content, mode)
        version.chmod(_VERSION_DIRECTORY)
        _sync(version)
    except BaseException:
        shutil.rmtree(version, ignore_errors=True)
        raise
    _link(directory / _DATA, version.name)
    for name in files:
        link, target = directory / name, f"{_DATA}/{name}"
        if not (link.is_symlink() and link.readlink() == Path(target)):
            _link(link, target)
    for entry in list(directory.iterdir()):
        # Earlier versions, and what an interrupted run left behind: both may hold a key.
        if entry.name.startswith(_VERSION_PREFIX) and entry.name != version.name:
            shutil.rmtree(entry)
    _sync(directory)


def _create(path: Path, content: bytes, mode: int) -> None:
    """Write a new file that only its owner can read until it has its final mode, whatever the umask is."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _link(link: Path, target: str) -> None:
    """Point `link` at `target` in one step, whatever file or link was there."""
    next_link = link.with_name(_DATA_NEXT)
    next_link.unlink(missing_ok=True)
    next_link.symlink_to(target)
    next_link.replace(link)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Make `directory` if need be, and keep other writers out of it, in this process and in others."""
    _make_directory(directory)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_directory(directory: Path) -> None:
    """Make a directory and its parents, nobody else's from the start; existing ones stay as they are."""
    if not directory.parent.exists():
        _make_directory(directory.parent)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=_PRIVATE_DIRECTORY)
        directory.chmod(_PRIVATE_DIRECTORY)  # the umask may have taken the owner's own bits


def _read_optional(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
