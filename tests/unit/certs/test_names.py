from ipaddress import ip_address

import pytest

from certs.names import Names


def test_service_has_the_four_forms_that_cluster_dns_resolves():
    names = Names.of_service("hook", "gpu")

    assert names.dns_names == ("hook", "hook.gpu", "hook.gpu.svc", "hook.gpu.svc.cluster.local")
    assert names.ip_addresses == ()


def test_loopback_adds_this_machine_under_its_name_and_both_addresses():
    names = Names.of_service("hook", "gpu", cluster_domain="example.org", loopback=True)

    assert names.dns_names[-2:] == ("hook.gpu.svc.example.org", "localhost")
    assert names.ip_addresses == (ip_address("127.0.0.1"), ip_address("::1"))


def test_names_are_lower_case_and_each_there_once():
    names = Names(
        dns_names=("Hook.Example", "b.example", "hook.example"),
        ip_addresses=(ip_address("::1"), ip_address("0:0::1")),
    )

    assert names.dns_names == ("hook.example", "b.example")
    assert names.ip_addresses == (ip_address("::1"),)


@pytest.mark.parametrize(
    "dns_name",
    [
        pytest.param("*.gpu.svc", id="a wildcard in front"),
        pytest.param("1-hook", id="a label that begins with a digit"),
        pytest.param("123", id="a Service whose name is all digits"),
        pytest.param("a" * 63 + ".svc", id="a label of the greatest length"),
    ],
)
def test_dns_name_is_taken(dns_name):
    assert Names(dns_names=(dns_name,)).dns_names == (dns_name,)


@pytest.mark.parametrize(
    "dns_name",
    [
        pytest.param("", id="nothing"),
        pytest.param("10.0.0.1", id="an IPv4 address, which no client matches as a DNS name"),
        pytest.param("::1", id="an IPv6 address"),
        pytest.param("hook.gpu.", id="a trailing dot, which certificates do not carry"),
        pytest.param("hook..gpu", id="an empty label"),
        pytest.param("-hook", id="a label that begins with a hyphen"),
        pytest.param("hook gpu", id="a blank"),
        pytest.param("hook\n", id="a line end"),
        pytest.param("höök", id="a letter outside ASCII"),
        pytest.param("hook.*.svc", id="a wildcard further back"),
        pytest.param("https://hook", id="a URL"),
        pytest.param("a" * 64, id="a label that is too long"),
        pytest.param(".".join(["a" * 60] * 5), id="a name that is too long"),
    ],
)
def test_what_no_client_could_match_is_refused(dns_name):
    with pytest.raises(ValueError, match="is not a DNS name"):
        Names(dns_names=(dns_name,))


def test_address_with_a_zone_index_is_refused():
    with pytest.raises(ValueError, match="names an interface"):
        Names(ip_addresses=(ip_address("fe80::1%eth0"),))


def test_at_least_one_name_is_needed():
    with pytest.raises(ValueError, match="at least one"):
        Names()
