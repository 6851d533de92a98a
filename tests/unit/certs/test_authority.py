import base64
import dataclasses
import datetime as dt
from ipaddress import ip_address

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from certs.authority import (
    CertificateError,
    KeyPair,
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

NOW = dt.datetime(2030, 5, 17, 12, 30, 45, 678901, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
HOUR = dt.timedelta(hours=1)
SECOND = dt.timedelta(seconds=1)

NAMES = Names(dns_names=("hook.gpu.svc", "localhost"), ip_addresses=(ip_address("127.0.0.1"),))
CA = issue_ca(NOW, 3650 * DAY)
OTHER_CA = issue_ca(NOW, 3650 * DAY)
PAIR = issue_serving(CA, NAMES, NOW, 365 * DAY)
OTHER_PAIR = issue_serving(CA, NAMES, NOW, 365 * DAY)


def parsed(pair: KeyPair) -> x509.Certificate:
    (certificate,) = x509.load_pem_x509_certificates(pair.certificate_pem)
    return certificate


def extension(pair: KeyPair, kind):
    return parsed(pair).extensions.get_extension_for_class(kind)


def self_made(key, *, is_ca: bool | None, has_identifier: bool = True, more=None) -> KeyPair:
    """Return a self-signed pair as somebody else might have made it."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self-made")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + 3650 * DAY)
    )
    if is_ca is not None:
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
    if has_identifier:
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        builder = builder.add_extension(identifier, critical=False)
    if more is not None:
        builder = builder.add_extension(more, critical=False)
    return KeyPair(
        certificate_pem=builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    )


def encrypted(pair: KeyPair) -> KeyPair:
    key = serialization.load_pem_private_key(pair.key_pem, password=None)
    return dataclasses.replace(
        pair,
        key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ),
    )


# --- what is issued


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(x509.DNSName("hook.gpu.svc"), id="the name that the API server calls"),
        pytest.param(x509.DNSName("localhost"), id="localhost"),
        pytest.param(x509.IPAddress(ip_address("127.0.0.1")), id="an IP address"),
    ],
)
def test_serving_certificate_verifies_for_each_of_its_names(subject):
    store = Store([parsed(CA)])

    chain = PolicyBuilder().store(store).time(NOW).build_server_verifier(subject).verify(parsed(PAIR), [])

    assert chain == [parsed(PAIR), parsed(CA)]


def test_serving_certificate_does_not_verify_for_another_name():
    verifier = PolicyBuilder().store(Store([parsed(CA)])).time(NOW).build_server_verifier(x509.DNSName("hook"))

    with pytest.raises(VerificationError):
        verifier.verify(parsed(PAIR), [])


def test_serving_certificate_carries_the_names_it_was_asked_for_and_no_other():
    names = extension(PAIR, x509.SubjectAlternativeName).value

    assert tuple(names.get_values_for_type(x509.DNSName)) == NAMES.dns_names
    assert tuple(names.get_values_for_type(x509.IPAddress)) == NAMES.ip_addresses


def test_ca_may_sign_end_certificates_and_do_nothing_else():
    constraints = extension(CA, x509.BasicConstraints)
    usage = extension(CA, x509.KeyUsage)

    assert constraints.critical
    assert constraints.value == x509.BasicConstraints(ca=True, path_length=0)
    assert usage.critical
    assert (usage.value.key_cert_sign, usage.value.crl_sign) == (True, True)
    assert (usage.value.digital_signature, usage.value.key_encipherment) == (False, False)


def test_serving_certificate_may_serve_and_do_nothing_else():
    constraints = extension(PAIR, x509.BasicConstraints)
    usage = extension(PAIR, x509.KeyUsage)

    assert constraints.critical
    assert not constraints.value.ca
    assert usage.critical
    assert (usage.value.digital_signature, usage.value.key_cert_sign) == (True, False)
    assert list(extension(PAIR, x509.ExtendedKeyUsage).value) == [ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.mark.parametrize(
    "pair", [pytest.param(CA, id="the CA names itself"), pytest.param(PAIR, id="a leaf names its CA")]
)
def test_key_identifiers_lead_to_the_ca(pair):
    ca_identifier = extension(CA, x509.SubjectKeyIdentifier).value.digest

    assert extension(pair, x509.AuthorityKeyIdentifier).value.key_identifier == ca_identifier


@pytest.mark.parametrize(
    ("pair", "want_lifetime"),
    [pytest.param(CA, 3650 * DAY, id="a CA"), pytest.param(PAIR, 365 * DAY, id="a serving certificate")],
)
def test_certificate_is_valid_from_an_hour_ago_for_its_lifetime_from_now(pair, want_lifetime):
    certificate = parsed(pair)

    assert certificate.not_valid_before_utc == NOW.replace(microsecond=0) - HOUR
    assert certificate.not_valid_after_utc == NOW.replace(microsecond=0) + want_lifetime
    assert read_certificate(pair.certificate_pem).serial == certificate.serial_number


def test_serving_certificate_never_outlives_its_ca():
    ca = issue_ca(NOW, 30 * DAY)

    pair = issue_serving(ca, NAMES, NOW, 365 * DAY)

    assert parsed(pair).not_valid_after_utc == parsed(ca).not_valid_after_utc


def test_keys_are_p256_and_keys_and_serial_numbers_are_new_each_time():
    first, second = parsed(PAIR), parsed(OTHER_PAIR)

    assert isinstance(first.public_key().curve, ec.SECP256R1)
    assert first.public_key() != second.public_key()
    assert first.serial_number != second.serial_number
    # RFC 5280 4.1.2.2: positive, at most 20 octets; CA/Browser Forum: at least 64 random bits.
    assert 2**64 < first.serial_number < 2**159


def test_time_in_another_zone_is_the_same_time():
    pair = issue_serving(CA, NAMES, NOW.astimezone(dt.timezone(dt.timedelta(hours=-9))), DAY)

    assert read_certificate(pair.certificate_pem).not_after == NOW.replace(microsecond=0) + DAY


def test_time_without_a_zone_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        issue_ca(NOW.replace(tzinfo=None), DAY)


def test_key_does_not_show_in_the_representation():
    assert "PRIVATE KEY" not in repr(PAIR)
    assert "BEGIN CERTIFICATE" in repr(PAIR)


@pytest.mark.parametrize(
    ("ca", "want_error"),
    [
        pytest.param(PAIR, "not that of a CA", id="a serving pair"),
        pytest.param(
            self_made(ec.generate_private_key(ec.SECP256R1()), is_ca=None),
            "not that of a CA",
            id="a certificate without basic constraints",
        ),
        pytest.param(
            self_made(ec.generate_private_key(ec.SECP256R1()), is_ca=True, has_identifier=False),
            "not that of a CA",
            id="a CA without the key identifier that RFC 5280 demands",
        ),
        pytest.param(
            self_made(rsa.generate_private_key(65537, 2048), is_ca=True),
            "not an ECDSA key",
            id="a CA with an RSA key",
        ),
        pytest.param(
            KeyPair(certificate_pem=CA.certificate_pem, key_pem=OTHER_CA.key_pem),
            "the key does not match the CA",
            id="a CA with the key of another",
        ),
        pytest.param(encrypted(CA), "the key of the CA is encrypted", id="a CA whose key is encrypted"),
        pytest.param(KeyPair(certificate_pem=b"", key_pem=CA.key_pem), "the CA cannot be read", id="an empty file"),
        pytest.param(issue_ca(NOW - 2 * DAY, DAY), "the CA expired at 2030-05-16T12:30:45Z", id="an expired CA"),
    ],
)
def test_unusable_ca_signs_nothing(ca, want_error):
    with pytest.raises(CertificateError, match=want_error):
        issue_serving(ca, NAMES, NOW, DAY)


# --- what is due for renewal


@pytest.mark.parametrize(
    ("pair", "want_reason"),
    [
        pytest.param(
            KeyPair(certificate_pem=PAIR.certificate_pem, key_pem=OTHER_PAIR.key_pem),
            "the key does not match the certificate",
            id="the key is that of another certificate",
        ),
        pytest.param(
            issue_serving(OTHER_CA, NAMES, NOW, 365 * DAY),
            "the certificate is not signed by the CA",
            id="another CA of the same name signed it",
        ),
        pytest.param(
            self_made(ec.generate_private_key(ec.SECP256R1()), is_ca=False),
            "the certificate is not signed by the CA",
            id="it signed itself",
        ),
        pytest.param(
            issue_serving(CA, Names(dns_names=("elsewhere",)), NOW, 365 * DAY),
            "the certificate lacks 127.0.0.1, hook.gpu.svc, localhost",
            id="it answers to other names",
        ),
        pytest.param(
            issue_serving(CA, Names(dns_names=("*.gpu.svc", "localhost")), NOW, 365 * DAY),
            "the certificate lacks 127.0.0.1, hook.gpu.svc",
            id="a wildcard is not the name",
        ),
        pytest.param(
            issue_serving(CA, NAMES, NOW - 2 * DAY, DAY),
            "the certificate expired at 2030-05-16T12:30:45Z",
            id="it has expired",
        ),
        pytest.param(
            issue_serving(CA, NAMES, NOW + 2 * HOUR, DAY),
            "the certificate is not valid before 2030-05-17T13:30:45Z",
            id="it is not valid yet",
        ),
        pytest.param(
            issue_serving(CA, NAMES, NOW - 300 * DAY, 365 * DAY),
            "the certificate expires at 2030-07-21T12:30:45Z, which is in the last third of its life",
            id="it is in the last third of its life",
        ),
        pytest.param(
            KeyPair(certificate_pem=b"nonsense", key_pem=PAIR.key_pem),
            "the certificate cannot be read",
            id="the certificate is not PEM",
        ),
        pytest.param(
            KeyPair(certificate_pem=PAIR.certificate_pem[:300], key_pem=PAIR.key_pem),
            "the certificate cannot be read",
            id="the certificate is cut short",
        ),
        pytest.param(
            KeyPair(certificate_pem=PAIR.certificate_pem, key_pem=b"nonsense"),
            "the key of the certificate cannot be read",
            id="the key is not PEM",
        ),
        pytest.param(encrypted(PAIR), "the key of the certificate is encrypted", id="the key is encrypted"),
    ],
)
def test_serving_pair_is_due(pair, want_reason):
    renewal = needs_renewal(pair, NAMES, ca_pem=CA.certificate_pem, now=NOW)

    assert renewal == (True, want_reason)
    assert renewal


def altered(pair: KeyPair, old: bytes, new: bytes) -> KeyPair:
    """Return a pair whose certificate has other bytes in one place, as no library would write it."""
    der = parsed(pair).public_bytes(serialization.Encoding.DER)
    assert der.count(old) == 1
    body = base64.encodebytes(der.replace(old, new))
    pem = b"-----BEGIN CERTIFICATE-----\n" + body + b"-----END CERTIFICATE-----\n"
    return dataclasses.replace(pair, certificate_pem=pem)


@pytest.mark.parametrize(
    ("old", "new", "want_reason"),
    [
        pytest.param(
            bytes.fromhex("a003020102"),
            bytes.fromhex("a003020104"),
            "the certificate cannot be read",
            id="a version that does not exist",
        ),
        pytest.param(
            bytes.fromhex("2a8648ce3d030107"),
            bytes.fromhex("2a8648ce3d030163"),
            "the certificate holds a key of an unknown kind",
            id="a curve that does not exist",
        ),
    ],
)
def test_senseless_certificate_is_due(old, new, want_reason):
    renewal = needs_renewal(altered(PAIR, old, new), NAMES, ca_pem=CA.certificate_pem, now=NOW)

    assert renewal == (True, want_reason)


def test_serving_pair_with_senseless_alternative_names_is_due():
    key = ec.generate_private_key(ec.SECP256R1())
    senseless = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, b"nonsense")
    pair = self_made(key, is_ca=True, more=senseless)

    assert needs_renewal(pair, NAMES, ca_pem=pair.certificate_pem, now=NOW).reason == (
        "the extensions of the certificate cannot be read"
    )


def test_ca_with_an_extension_twice_is_not_that_of_a_ca():
    """The key usage is renamed to be a second subject key identifier."""
    ca = altered(CA, bytes.fromhex("0603551d0f"), bytes.fromhex("0603551d0e"))

    with pytest.raises(CertificateError, match="not that of a CA"):
        ca_needs_renewal(ca.certificate_pem, NOW)


def test_serving_pair_without_alternative_names_is_due():
    key = ec.generate_private_key(ec.SECP256R1())
    pair = self_made(key, is_ca=True)

    assert needs_renewal(pair, NAMES, ca_pem=pair.certificate_pem, now=NOW).reason == (
        "the certificate lacks 127.0.0.1, hook.gpu.svc, localhost"
    )


def test_serving_pair_of_an_expired_ca_is_due():
    ca = issue_ca(NOW - 2 * DAY, DAY)
    pair = issue_serving(ca, NAMES, NOW - 2 * DAY, DAY)

    assert needs_renewal(pair, NAMES, ca_pem=ca.certificate_pem, now=NOW).reason == (
        "the CA expired at 2030-05-16T12:30:45Z"
    )


@pytest.mark.parametrize(
    ("names", "ca_pem"),
    [
        pytest.param(NAMES, CA.certificate_pem, id="all is as it was issued"),
        pytest.param(Names(dns_names=("LOCALHOST",)), CA.certificate_pem, id="it answers to more than asked"),
        pytest.param(NAMES, OTHER_CA.certificate_pem + CA.certificate_pem, id="its CA is the second of a bundle"),
    ],
)
def test_serving_pair_is_kept(names, ca_pem):
    renewal = needs_renewal(PAIR, names, ca_pem=ca_pem, now=NOW)

    assert not renewal
    assert renewal.reason == (
        "the certificate is valid until 2031-05-17T12:30:45Z, due for renewal from 2031-01-15T20:10:45Z"
    )


@given(
    lifetime=st.timedeltas(min_value=dt.timedelta(seconds=1), max_value=3000 * DAY),
    share=st.floats(min_value=-0.5, max_value=1.5),
)
def test_only_the_middle_of_a_life_needs_no_renewal(lifetime, share):
    """A serving certificate is due before its life, in the last third of it, and after it; never in between."""
    pair = issue_serving(CA, NAMES, NOW, lifetime)
    certificate = read_certificate(pair.certificate_pem)
    life = certificate.not_after - certificate.not_before
    now = certificate.not_before + life * share

    renewal = needs_renewal(pair, NAMES, ca_pem=CA.certificate_pem, now=now)

    assert renewal.is_due == (now < certificate.not_before or certificate.not_after - now <= life / 3)


def test_unreadable_ca_is_an_error_and_no_reason_to_renew():
    with pytest.raises(CertificateError, match="the CA cannot be read"):
        needs_renewal(PAIR, NAMES, ca_pem=b"nonsense", now=NOW)


@pytest.mark.parametrize(
    ("ca", "want"),
    [
        pytest.param(
            CA,
            (False, "the CA is valid until 2040-05-14T12:30:45Z, due for renewal from 2037-01-13T20:10:45Z"),
            id="it is new",
        ),
        pytest.param(
            issue_ca(NOW - 20 * DAY, 29 * DAY),
            (True, "the CA expires at 2030-05-26T12:30:45Z, which is in the last third of its life"),
            id="it is in the last third of its life",
        ),
        pytest.param(
            issue_ca(NOW - 2 * DAY, DAY),
            (True, "the CA expired at 2030-05-16T12:30:45Z"),
            id="it has expired",
        ),
    ],
)
def test_ca_is_due_by_its_age(ca, want):
    assert ca_needs_renewal(ca.certificate_pem, NOW) == want


@pytest.mark.parametrize(
    ("ca_pem", "want_error"),
    [
        pytest.param(b"nonsense", "the CA cannot be read", id="it is not PEM"),
        pytest.param(PAIR.certificate_pem, "not that of a CA", id="it is a serving certificate"),
        pytest.param(issue_ca(NOW + 2 * HOUR, DAY).certificate_pem, "is the clock right", id="it is not valid yet"),
    ],
)
def test_ca_that_is_no_use_is_not_thrown_away_unasked(ca_pem, want_error):
    with pytest.raises(CertificateError, match=want_error):
        ca_needs_renewal(ca_pem, NOW)


# --- pairs and bundles


def test_pair_checks_against_any_ca_of_a_bundle():
    check_pair(PAIR, ca_pem=OTHER_CA.certificate_pem + CA.certificate_pem)

    with pytest.raises(CertificateError, match="not signed by the CA"):
        check_pair(PAIR, ca_pem=OTHER_CA.certificate_pem)


def test_bundle_holds_each_ca_once_with_the_current_one_first_and_no_expired_one():
    expired = issue_ca(NOW - 2 * DAY, DAY).certificate_pem
    current, earlier = CA.certificate_pem, OTHER_CA.certificate_pem

    assert merge_bundle(current, earlier + current + expired + earlier, NOW) == current + earlier


def test_missing_authorities_are_counted():
    both = CA.certificate_pem + OTHER_CA.certificate_pem

    assert missing_authorities(both, bundle_pem=both) == 0
    assert missing_authorities(both, bundle_pem=CA.certificate_pem) == 1
