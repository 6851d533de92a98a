"""What `hami-quota manifests` prints: the manifest that is committed, and what it says when it cannot print."""

from __future__ import annotations

import base64
import datetime as dt
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from certs import Names, ensure_pair

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("hami-quota")
COMMITTED = ROOT / "manifests" / "validating-webhook.yaml"
DEVICE_CONFIG = ("--device-config", "examples/device-config.yaml")

UNGUARDED = "updates are not guarded: name HAMi's scheduler and device plugins with --trusted-user"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "manifests", "webhook", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_committed_manifest_is_what_the_command_prints():
    """`HAMI_QUOTA_REWRITE=1` writes it anew: after a change of the families, or of the example configuration."""
    done = run(*DEVICE_CONFIG)
    assert (done.returncode, done.stderr) == (0, f"{UNGUARDED}\n")
    if os.environ.get("HAMI_QUOTA_REWRITE") == "1":
        COMMITTED.write_text(done.stdout, encoding="utf-8")
    assert done.stdout == COMMITTED.read_text(encoding="utf-8")


def issued(directory: Path) -> Path:
    ensure_pair(directory, Names.of_service("s", "ns"), dt.datetime.now(dt.UTC))
    return directory


@pytest.mark.parametrize(
    ("name", "want"),
    [
        pytest.param("tls.key", "holds a private key: give the authority's certificate, ca.crt", id="a private key"),
        pytest.param("tls.txt", "holds no certificate", id="something else"),
    ],
)
def test_only_certificates_are_published(tmp_path: Path, name: str, want: str):
    (issued(tmp_path) / "tls.txt").write_text("a: [b")
    done = run(*DEVICE_CONFIG, "--ca-bundle", tmp_path / name)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--ca-bundle {tmp_path / name}: {want}" in done.stderr


def test_every_option_has_its_place(tmp_path: Path):
    bundle = issued(tmp_path) / "ca.crt"
    done = run(
        *DEVICE_CONFIG,
        *("--name", "n", "--service", "s", "--namespace", "ns", "--port", "8443", "--ca-bundle", bundle),
        *("--exclude-namespace", "a", "--exclude-namespace", "b", "--timeout", "10", "--failure-policy", "Ignore"),
    )
    configuration = yaml.safe_load(done.stdout)
    (webhook,) = configuration["webhooks"]
    (excluded,) = webhook["namespaceSelector"]["matchExpressions"]
    assert configuration["metadata"]["name"] == "n"
    assert webhook["clientConfig"] == {
        "service": {"name": "s", "namespace": "ns", "path": "/validate", "port": 8443},
        "caBundle": base64.b64encode(bundle.read_bytes()).decode(),
    }
    assert excluded["values"] == ["kube-system", "ns", "a", "b"]
    assert (webhook["timeoutSeconds"], webhook["failurePolicy"]) == (10, "Ignore")


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        pytest.param((), "Missing option '--device-config'", id="no device configuration"),
        pytest.param(
            ("--device-config", "nowhere.yaml"),
            "--device-config nowhere.yaml: No such file or directory",
            id="a device configuration that is not there",
        ),
        pytest.param(
            ("--device-config", "README.md"), "hami-quota: line", id="a device configuration that cannot be read"
        ),
        pytest.param(
            (*DEVICE_CONFIG, "--ca-bundle", "nowhere.crt"),
            "--ca-bundle nowhere.crt: No such file or directory",
            id="an authority that is not there",
        ),
        pytest.param((*DEVICE_CONFIG, "--timeout", "31"), "'--timeout'", id="longer than the API server waits"),
        pytest.param((*DEVICE_CONFIG, "--port", "0"), "'--port'", id="no port"),
        pytest.param((*DEVICE_CONFIG, "--failure-policy", "fail"), "'--failure-policy'", id="no failure policy"),
    ],
)
def test_what_cannot_be_printed_is_told_and_exits_2(arguments: tuple[str, ...], want: str):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert want in done.stderr.splitlines()[-1]
