"""Makes a CA and serving certificates, and says when one is due for renewal.

Pure: the time is passed in, nothing is read or written, and the only thing not decided by the arguments is
the randomness of keys and serial numbers. Where the results are kept is the business of `directory`.

Every certificate follows RFC 5280 to the letter (key identifiers, critical basic constraints and key usage),
because OpenSSL with X509_STRICT, as in Python's default client context since 3.13, refuses what is merely
customary.
"""

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.names import Names

# A new certificate must be valid at once for clients whose clock is behind ours. One hour is what
# cert-controller takes (pkg/rotator/rotator.go `refreshCerts`).
CLOCK_SKEW = dt.timedelta(hours=1)

# What cryptography raises for a certificate that is PEM and still makes no sense. Most are no ValueError, and all
# but the first version check come only when the part in question is looked at.
_SENSELESS = (
    ValueError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)


class CertificateError(ValueError):
    """A certificate or key that cannot be read, used or replaced.

    The text says which and why, and never holds key material.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A certificate (followed by its chain, if any) and its unencrypted private key, both PEM.

    The key is left out of `repr`, so a pair in a traceback or a log line gives nothing away.
    """

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """How long new certificates live, counted from now; the backdating comes on top.

    Ten years and one year are cert-controller's defaults.
    """

    ca: dt.timedelta = dt.timedelta(days=3650)
    serving: dt.timedelta = dt.timedelta(days=365)


DEFAULT_LIFETIMES = Lifetimes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What metrics and messages say about a certificate."""

    serial: int
    not_before: dt.datetime
    not_after: dt.datetime

    @property
    def renew_from(self) -> dt.datetime:
        """When the last third of its life begins, which is when it is due for renewal.

        Source: cert-manager, pkg/server/tls/authority/authority.go `caRequiresRegeneration`.
        """
        return self.not_after - (self.not_after - self.not_before) / 3


class Renewal(NamedTuple):
    """Whether a certificate is due for renewal, and why, or why not. As a condition it is `is_due`."""

    is_due: bool
    reason: str

    def __bool__(self) -> bool:
        return self.is_due


def issue_ca(now: dt.datetime, lifetime: dt.timedelta, *, common_name: str = "admission webhook CA") -> KeyPair:
    """Return a new self-signed CA that may sign end certificates only."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(common_name)
    builder = (
        _builder(subject, subject, key.public_key(), now)
        .not_valid_after(_seconds(now) + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(is_ca=True), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
    )
    return _sign(builder, key, signed_by=key)


def issue_serving(
    ca: KeyPair,
    names: Names,
    now: dt.datetime,
    lifetime: dt.timedelta,
    *,
    common_name: str = "admission webhook",
) -> KeyPair:
    """Return a new serving pair for `names`, signed by `ca`; it never outlives `ca`.

    The common name is for people who read the certificate. Clients match the alternative names only.

    Raises:
        CertificateError: `ca` is not a usable CA, has expired, or its key does not match.
    """
    ca_certificate, ca_key, ca_key_identifier = _load_ca(ca)
    if now >= ca_certificate.not_valid_after_utc:
        raise CertificateError(f"the CA expired at {_text(ca_certificate.not_valid_after_utc)}")
    key = ec.generate_private_key(ec.SECP256R1())
    alternatives = x509.SubjectAlternativeName(
        [
            *(x509.DNSName(name) for name in names.dns_names),
            *(x509.IPAddress(address) for address in names.ip_addresses),
        ]
    )
    identifier = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_key_identifier)
    builder = (
        _builder(_subject(common_name), ca_certificate.subject, key.public_key(), now)
        .not_valid_after(min(_seconds(now) + lifetime, ca_certificate.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(is_ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(identifier, critical=False)
    )
    return _sign(builder, key, signed_by=ca_key)


def needs_renewal(pair: KeyPair, names: Names, *, ca_pem: bytes, now: dt.datetime) -> Renewal:
    """Say whether a serving pair must be replaced: broken, short of a name, or in the last third of its life.

    Args:
        pair: The serving pair as found.
        names: What it has to answer to; more than that does no harm.
        ca_pem: One or more CA certificates; one of them must have signed the pair.
        now: The time to judge by.

    Raises:
        CertificateError: `ca_pem` cannot be read. A bad pair is a reason to renew it; a bad CA is not.
    """
    authorities = _load_certificates(ca_pem, "CA")
    try:
        leaf = _load_matching(pair, "certificate")
        issuer = _issuer(leaf, authorities)
        missing = _missing_names(leaf, names)
    except CertificateError as error:
        return Renewal(is_due=True, reason=str(error))
    if missing:
        return Renewal(is_due=True, reason=f"the certificate lacks {', '.join(missing)}")
    if now >= issuer.not_valid_after_utc:
        return _age(_facts(issuer), now, "CA")
    return _age(_facts(leaf), now, "certificate")


def ca_needs_renewal(ca_pem: bytes, now: dt.datetime) -> Renewal:
    """Say whether the first CA in `ca_pem` is in the last third of its life, or past it.

    Only its age counts: a CA that cannot be used for another reason is for a person to look at.

    Raises:
        CertificateError: it cannot be read, is no CA, or is not valid yet. The last means that the clock is
            wrong, which is no reason to throw a CA away.
    """
    certificate = _load_certificates(ca_pem, "CA")[0]
    _ca_key_identifier(certificate)
    renewal = _age(_facts(certificate), now, "CA")
    if now < certificate.not_valid_before_utc:
        raise CertificateError(f"{renewal.reason}; is the clock right?")
    return renewal


def check_pair(pair: KeyPair, *, ca_pem: bytes) -> None:
    """Raise CertificateError unless the key matches the certificate and a CA in `ca_pem` signed it."""
    _issuer(_load_matching(pair, "certificate"), _load_certificates(ca_pem, "CA"))


def read_certificate(certificate_pem: bytes) -> Certificate:
    """Return the facts of the first certificate in a PEM text."""
    return _facts(_load_certificates(certificate_pem, "certificate")[0])


def missing_authorities(expected_pem: bytes, *, bundle_pem: bytes) -> int:
    """Return how many of the CAs in `expected_pem` are not in `bundle_pem`."""
    bundle = _load_certificates(bundle_pem, "CA bundle")
    return sum(ca not in bundle for ca in _load_certificates(expected_pem, "CA"))


def merge_bundle(ca_pem: bytes, earlier_pem: bytes, now: dt.datetime) -> bytes:
    """Return a CA bundle: the CAs of `ca_pem`, then those of `earlier_pem` that have not expired, each once.

    With the earlier CA still in the bundle, a client that has the new bundle also trusts the replicas that
    still serve the old pair.
    """
    current = _load_certificates(ca_pem, "CA")
    earlier = [ca for ca in _load_certificates(earlier_pem, "CA bundle") if ca.not_valid_after_utc > now]
    bundle: list[x509.Certificate] = []
    for certificate in (*current, *earlier):
        if certificate not in bundle:
            bundle.append(certificate)
    return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in bundle)


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _seconds(now: dt.datetime) -> dt.datetime:
    """Return `now` in UTC without the fraction that a certificate has no room for."""
    if now.tzinfo is None:
        raise ValueError("the time must carry its time zone")
    return now.astimezone(dt.UTC).replace(microsecond=0)


def _key_usage(*, is_ca: bool) -> x509.KeyUsage:
    # An ECDSA serving key only signs handshakes. Key encipherment is for RSA key exchange, gone with TLS 1.3.
    return x509.KeyUsage(
        digital_signature=not is_ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_ca,
        crl_sign=is_ca,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    """Return what a CA and a serving certificate have in common."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_seconds(now) - CLOCK_SKEW)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _sign(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    *,
    signed_by: ec.EllipticCurvePrivateKey,
) -> KeyPair:
    certificate = builder.sign(signed_by, hashes.SHA256())
    return KeyPair(
        certificate_pem=certificate.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def _load_certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    """Return the certificates of a PEM text, at least one."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except _SENSELESS as error:
        raise CertificateError(f"the {what} cannot be read") from error


def _load_key(pem: bytes, what: str) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise CertificateError(f"the key of the {what} is encrypted") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"the key of the {what} cannot be read") from error


def _load_matching(pair: KeyPair, what: str) -> x509.Certificate:
    """Return the first certificate of a pair whose key is its own."""
    certificate = _load_certificates(pair.certificate_pem, what)[0]
    try:
        public_key = certificate.public_key()
    except _SENSELESS as error:
        raise CertificateError(f"the {what} holds a key of an unknown kind") from error
    if _load_key(pair.key_pem, what).public_key() != public_key:
        raise CertificateError(f"the key does not match the {what}")
    return certificate


def _load_ca(ca: KeyPair) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey, x509.SubjectKeyIdentifier]:
    certificate = _load_matching(ca, "CA")
    identifier = _ca_key_identifier(certificate)
    key = _load_key(ca.key_pem, "CA")
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError("the key of the CA is not an ECDSA key")
    return certificate, key, identifier


def _ca_key_identifier(certificate: x509.Certificate) -> x509.SubjectKeyIdentifier:
    """Return the subject key identifier of a CA, which RFC 5280 4.2.1.2 makes every CA carry."""
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        identifier = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except (*_SENSELESS, x509.ExtensionNotFound) as error:
        raise CertificateError("the CA certificate is not that of a CA") from error
    if not constraints.ca:
        raise CertificateError("the CA certificate is not that of a CA")
    return identifier


def _issuer(leaf: x509.Certificate, authorities: Iterable[x509.Certificate]) -> x509.Certificate:
    """Return the CA that signed `leaf`."""
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            continue
        return authority
    raise CertificateError("the certificate is not signed by the CA")


def _missing_names(leaf: x509.Certificate, names: Names) -> list[str]:
    """Return the wanted names that the certificate does not carry, sorted."""
    try:
        held = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        held = x509.SubjectAlternativeName([])
    except _SENSELESS as error:
        raise CertificateError("the extensions of the certificate cannot be read") from error
    held_dns_names = {name.lower() for name in held.get_values_for_type(x509.DNSName)}
    held_addresses = set(held.get_values_for_type(x509.IPAddress))
    return sorted(
        [
            *(name for name in names.dns_names if name not in held_dns_names),
            *(str(address) for address in names.ip_addresses if address not in held_addresses),
        ]
    )


def _facts(certificate: x509.Certificate) -> Certificate:
    return Certificate(
        serial=certificate.serial_number,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
    )


def _age(certificate: Certificate, now: dt.datetime, what: str) -> Renewal:
    if now >= certificate.not_after:
        return Renewal(is_due=True, reason=f"the {what} expired at {_text(certificate.not_after)}")
    if now < certificate.not_before:
        return Renewal(is_due=True, reason=f"the {what} is not valid before {_text(certificate.not_before)}")
    if now >= certificate.renew_from:
        reason = f"the {what} expires at {_text(certificate.not_after)}, which is in the last third of its life"
        return Renewal(is_due=True, reason=reason)
    until, renew_from = _text(certificate.not_after), _text(certificate.renew_from)
    reason = f"the {what} is valid until {until}, due for renewal from {renew_from}"
    return Renewal(is_due=False, reason=reason)


def _text(time: dt.datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")
