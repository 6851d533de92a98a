"""`hami-quota serve` as people start it: on a directory of manifests, and on a cluster that is not there."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
import urllib3
from builders import COUNT, MEMORY, pod, review
from control_plane import free_port
from kube_api import eventually
from processes import Process
from webhook_process import COMMAND, DEVICE_CONFIG, ROOT

import webhook as package

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES = ROOT / "examples"
MEMORY_KEY = f"limits.{MEMORY}"


def run(*arguments: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end; one that serves by mistake is ended."""
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=30, env=os.environ | environ
    )


class Server:
    """One `hami-quota serve`, with certificates of its own and a copy of the example cluster."""

    def __init__(self, directory: Path, *options: str | Path) -> None:
        self.port = free_port()
        self.state = directory / "cluster"
        self.certs = directory / "certs"
        self._log = directory / "serve.log"
        shutil.copytree(EXAMPLES / "cluster", self.state)
        assert run("certs", "--dir", self.certs, "--loopback").returncode == 0
        self.process = Process(
            [
                *(COMMAND, "serve", "--device-config", DEVICE_CONFIG, "--certs", self.certs),
                *("--bind", f"127.0.0.1:{self.port}", "--drain", "0"),
                *(options or ("--state", self.state)),
            ],
            self._log,
        )
        self._http = urllib3.PoolManager(ca_certs=str(self.certs / "ca.crt"), retries=False, timeout=10)

    def __enter__(self) -> Self:
        self.process.start()
        eventually(lambda: self.get("/healthz")[0] == 200 or self.process.require_running(), "server")
        return self

    def __exit__(self, *_: object) -> None:
        self._http.clear()
        self.process.stop()

    def get(self, path: str) -> tuple[int, str]:
        """Return status and text; status 0 while nobody listens."""
        try:
            answer = self._http.request("GET", f"https://127.0.0.1:{self.port}{path}")
        except urllib3.exceptions.HTTPError as error:
            return 0, str(error)
        return answer.status, answer.data.decode()

    def post(self, body: bytes) -> tuple[int, Any]:
        answer = self._http.request(
            "POST",
            f"https://127.0.0.1:{self.port}/validate?timeout=3s",
            headers={"Content-Type": "application/json"},
            body=body,
        )
        return answer.status, json.loads(answer.data)

    def example(self, name: str) -> dict[str, Any]:
        """Return the response to an example review."""
        body = (EXAMPLES / "reviews" / name).read_bytes()
        status, answer = self.post(body)
        assert status == 200
        response: dict[str, Any] = answer["response"]
        assert response["uid"] == json.loads(body)["request"]["uid"]
        return response

    def replace(self, name: str, text: str) -> None:
        """Put a manifest in the place of one, whole from its first moment."""
        new = self.state / f".{name}"
        new.write_text(text)
        new.rename(self.state / name)

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as running:
        yield running


def test_the_example_reviews_are_answered_over_tls(server: Server):
    """Worked out beside the examples: 14000 of 24576 MiB are used, the first asks for 4000, the second for 22000."""
    assert server.get("/readyz") == (200, "ok\n")
    fits, refused = server.example("fits.json"), server.example("refused.json")
    assert (fits["allowed"], fits.get("warnings", [])) == (True, [])
    assert not refused["allowed"]
    assert (refused["status"]["code"], refused["status"]["reason"]) == (403, "Forbidden")
    assert refused["status"]["message"] == (
        f"exceeded quota: gpu-cap, requested: {MEMORY_KEY}=22000, used: {MEMORY_KEY}=18000, "
        f"limited: {MEMORY_KEY}=24576\n"
        "(namespace team-a, MiB: sidecar proxy 2000 + init load 20000 run together; 15424 too many)"
    )


def test_a_client_that_knows_another_authority_does_not_trust_it(server: Server, tmp_path: Path):
    assert run("certs", "--dir", tmp_path / "other", "--loopback").returncode == 0
    stranger = urllib3.PoolManager(ca_certs=str(tmp_path / "other" / "ca.crt"), retries=False, timeout=10)
    with pytest.raises(urllib3.exceptions.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        stranger.request("GET", f"https://127.0.0.1:{server.port}/readyz")
    assert server.get("/readyz")[0] == 200


def test_a_changed_manifest_is_obeyed(server: Server):
    text = (server.state / "team-a.yaml").read_text()
    fits = json.loads((EXAMPLES / "reviews" / "fits.json").read_text())
    fits["request"]["dryRun"] = True

    def refusal() -> str:
        _, answer = server.post(json.dumps(fits).encode())
        return "" if answer["response"]["allowed"] else str(answer["response"]["status"]["message"])

    assert refusal() == ""
    server.replace("team-a.yaml", text.replace('"24576"', '"17999"'))
    assert "used: limits.nvidia.com/gpumem=14000, limited: limits.nvidia.com/gpumem=17999" in eventually(
        refusal, "refusal"
    )
    # What breaks counts on as it was, and is said.
    server.replace("team-a.yaml", "kind: [\n")
    eventually(lambda: "what was read of it before still counts" in server.log(), "complaint")
    assert "limited: limits.nvidia.com/gpumem=17999" in refusal()
    server.replace("team-a.yaml", text)
    eventually(lambda: not refusal(), "room")


def test_a_new_pod_is_counted(server: Server):
    new = pod("new").app("main", mem=10576).document  # with the 14000, all of the 24576
    server.replace("new.json", json.dumps(new))
    eventually(lambda: "used: limits.nvidia.com/gpumem=24576" in str(server.example("refused.json")), "new pod")
    (server.state / "new.json").unlink()
    eventually(lambda: server.example("fits.json")["allowed"], "room")


def test_hints_are_two_commands_that_work(tmp_path: Path):
    with Server(tmp_path, "--state", tmp_path / "cluster", "--hints") as server:
        eventually(lambda: "Ctrl-C ends it." in server.log(), "hints")
        assert f"hami-quota serves {server.state} on https://127.0.0.1:{server.port}." in server.log()
        commands = [shlex.split(line) for line in server.log().splitlines() if line.startswith("  curl ")]
        allowed = []
        for command in commands:
            curl, cacert, authority, header, content_type, data, body, url = command
            assert (curl, cacert, header, data) == ("curl", "--cacert", "-H", "-d")
            assert url == f"https://127.0.0.1:{server.port}/validate"
            name, _, value = content_type.partition(": ")
            with urllib3.PoolManager(ca_certs=authority, retries=False, timeout=10) as client:
                path = ROOT / body.removeprefix("@")
                answer = client.request("POST", url, headers={name: value}, body=path.read_bytes())
            allowed.append(json.loads(answer.data)["response"]["allowed"])
        assert allowed == [True, False]


def test_without_hints_nothing_is_printed_but_the_log(server: Server):
    assert "curl" not in server.log()


@pytest.mark.parametrize(
    ("signum", "want_code"),
    [pytest.param(signal.SIGTERM, 0, id="SIGTERM"), pytest.param(signal.SIGINT, 0, id="Ctrl-C")],
)
def test_nothing_is_left_behind(tmp_path: Path, signum: signal.Signals, want_code: int):
    server = Server(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with server:
        child = server.process._child
        assert child is not None
        server.process.send(signum)
        assert child.wait(20) == want_code
        # It is the leader of its own group, which its worker is in.
        eventually(lambda: not group_lives(child.pid), "end of the worker")
        assert server.get("/healthz")[0] == 0
    assert sorted(tmp_path.rglob("*")) == sorted([*before, tmp_path / "serve.log"])
    assert "Traceback" not in server.log()


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# A cluster that is not there.


def test_before_the_first_lists_gpu_pods_are_not_decided_and_others_allowed(tmp_path: Path):
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "dead",
                "contexts": [{"name": "dead", "context": {"cluster": "dead", "user": "nobody"}}],
                "clusters": [{"name": "dead", "cluster": {"server": f"https://127.0.0.1:{free_port()}"}}],
                "users": [{"name": "nobody", "user": {"token": "none"}}],
            }
        )
    )
    waiting = "waiting for the first list of namespaces, nodes, resourcequotas, pods"
    with Server(tmp_path, "--kubeconfig", kubeconfig) as server:
        assert server.get("/readyz") == (503, f"{waiting}\n")
        assert server.get("/healthz")[0] == 200
        assert server.post(review(pod().app("main", mem=1000))) == (503, {"reason": waiting})
        status, answer = server.post(review(pod().app("main", limits={"cpu": "1"})))
        assert (status, answer["response"]["allowed"]) == (200, True)
        assert 'hami_quota_reviews_undecided_total{reason="undecided"} 1.0' in server.get("/metrics")[1]


# What it does not start with: one line that names the flag, exit code 2.


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    assert run("certs", "--dir", directory, "--loopback").returncode == 0
    return directory


def refusal_to_serve(certs: Path, *options: str | Path, **environ: str) -> str:
    """Return the one line that `serve` ends with at once; the last of two equal options counts."""
    done = run(
        *("serve", "--state", EXAMPLES / "cluster", "--device-config", DEVICE_CONFIG, "--certs", certs),
        *("--bind", f"127.0.0.1:{free_port()}", *options),
        **environ,
    )
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            f"nvidia:\n  resourceCountName: {COUNT}\n  memoryFactor: one\n",
            r"line 3: nvidia\.memoryFactor: must be an integer",
            id="a wrong type",
        ),
        pytest.param(
            f"nvidia:\n  resourceCountName: {COUNT}\n  resourceCountName: {COUNT}\n",
            r"line 3: nvidia\.resourceCountName: is given twice",
            id="a key twice",
        ),
        pytest.param("nvidia:\n  - a: [\n", r"line \d: is not YAML", id="no YAML"),
        pytest.param("other: {}\n", "configures no device family", id="nothing of ours"),
    ],
)
def test_a_broken_device_configuration_is_told_with_line_and_key(certs: Path, tmp_path: Path, text: str, want: str):
    path = tmp_path / "device-config.yaml"
    path.write_text(text)
    assert re.search(rf"^hami-quota: .*{want}", refusal_to_serve(certs, "--device-config", path))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param(
            ("--device-config", "/nowhere/config.yaml"), "--device-config /nowhere/config.yaml: ", id="no device config"
        ),
        pytest.param(
            ("--certs", "/nowhere"),
            "--certs /nowhere: cannot read /nowhere/tls.crt: No such file or directory",
            id="no certificates",
        ),
        pytest.param(("--workers", "2"), "--workers '2': the ledger lives in one process", id="two workers"),
        pytest.param(("--bind", "8443"), "--bind: '8443' must be HOST:PORT", id="no address"),
        pytest.param(("--warn-at", "80%"), "--warn-at: '80%' must be an integer from 1 to 100", id="no percentage"),
        pytest.param(("--state", "/nowhere"), "/nowhere: no such file or directory", id="no directory"),
        pytest.param(
            ("--assumed-card-memory", "NVIDIA"), "--assumed-card-memory: 'NVIDIA' must be FAMILY=MIB", id="no size"
        ),
        pytest.param(
            ("--kubeconfig", "config"), "--state and --kubeconfig exclude each other", id="two places to look at"
        ),
    ],
)
def test_a_wrong_setting_is_told_with_its_flag(certs: Path, options: tuple[str, ...], want: str):
    assert refusal_to_serve(certs, *options).startswith(f"hami-quota: {want}")


def test_options_are_taken_from_the_environment(certs: Path):
    said = refusal_to_serve(certs, HAMI_QUOTA_SERVE_WARN_AT="all")
    assert said.startswith("hami-quota: --warn-at: 'all' must be")


def test_several_workers_by_gunicorns_own_environment_are_refused_too(certs: Path):
    assert refusal_to_serve(certs, WEB_CONCURRENCY="4").startswith("hami-quota: WEB_CONCURRENCY '4': the ledger lives")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("kind: Pod\nmetadata: {name: a\n", r"broken\.yaml:\d: is not YAML", id="no YAML"),
        pytest.param(
            "kind: Namespace\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}\nspec: {containers: 5}\n",
            r"broken\.yaml:4: .*containers",
            id="no pod that an API server could have stored",
        ),
    ],
)
def test_a_broken_manifest_is_told_with_file_and_line(certs: Path, tmp_path: Path, text: str, want: str):
    (tmp_path / "broken.yaml").write_text(text)
    assert re.search(rf"^hami-quota: .*/{want}", refusal_to_serve(certs, "--state", tmp_path))


@pytest.mark.parametrize(
    ("options", "want"),
    [
        pytest.param((), "this is no pod of a cluster: give --kubeconfig, --context or --state", id="nothing"),
        pytest.param(
            ("--kubeconfig", "/nowhere/config"), "--kubeconfig /nowhere/config: no such file", id="no kubeconfig"
        ),
    ],
)
def test_without_a_place_to_look_at_it_does_not_start(certs: Path, options: tuple[str, ...], want: str):
    done = run("serve", "--device-config", DEVICE_CONFIG, "--certs", certs, *options)
    assert (done.returncode, done.stderr) == (2, f"hami-quota: {want}\n")


# The command itself.


def test_help_lists_every_command():
    done = run("--help")
    assert done.returncode == 0
    for command in ("certs", "manifests", "serve", "usage", "verify"):
        assert re.search(rf"^  {command} +[A-Z].*\.$", done.stdout, re.MULTILINE)
        assert run(command, "-h").returncode == 0


def test_version_is_the_packages():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"hami-quota {package.__version__}\n")


def test_a_command_that_is_none_is_told():
    done = run("served")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'served'" in done.stderr


def test_certificates_are_issued_once_and_kept(tmp_path: Path):
    first, again, anew = (run("certs", "--dir", tmp_path, "--loopback", *more) for more in ((), (), ("--replace-ca",)))
    assert first.stdout.startswith(f"issued {tmp_path / 'tls.crt'}, good until ")
    assert again.stdout.startswith(f"kept {tmp_path / 'tls.crt'}, good until ")
    assert anew.stdout.startswith(f"issued {tmp_path / 'tls.crt'}, good until ")
    assert ((tmp_path / "tls.key").stat().st_mode & 0o777) == 0o600


def test_a_certificate_that_cannot_be_issued_is_told(tmp_path: Path):
    done = run("certs", "--dir", tmp_path / "certs", "--ip", "localhost")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hami-quota: certs: 'localhost' does not appear to be an IPv4 or IPv6 address\n"
    assert not (tmp_path / "certs").exists()
