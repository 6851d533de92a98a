"""Manifests as people and tools write them, and a directory of them in place of an API server."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from webhook import files, state_directory
from webhook.errors import DecodeError
from webhook.files import decode_documents, manifest_files, read_documents
from webhook.state_directory import StateDirectory

KINDS = ("Namespace", "Node", "ResourceQuota", "Pod")


def write(path: Path, text: str) -> Path:
    """Put a whole file in place, as one step and under a new inode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
    return path


def names(documents: list[files.Document]) -> list[str]:
    return [document.content["metadata"]["name"] for document in documents]


def pod(name: str, **metadata: Any) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}})


def quota(limit: int, name: str = "gpu-cap", namespace: str = "team-a") -> str:
    return (
        f"apiVersion: v1\nkind: ResourceQuota\nmetadata: {{name: {name}, namespace: {namespace}}}\n"
        f"spec: {{hard: {{limits.nvidia.com/gpumem: {limit}}}}}\n"
    )


# Which files are read.


def test_a_directory_gives_its_manifests_sorted_and_nothing_else(tmp_path: Path):
    for name in ("b.yaml", "a.yml", "c.json", "README.md", ".hidden.yaml", "d.yaml.bak", "below/e.yaml", ".git/f.yaml"):
        write(tmp_path / name, "")
    found = [str(path.relative_to(tmp_path)) for path in manifest_files(tmp_path)]
    assert found == ["a.yml", "b.yaml", "below/e.yaml", "c.json"]


def test_a_file_that_is_named_is_read_whatever_it_is_called(tmp_path: Path):
    named = write(tmp_path / ".rendered", "")
    assert manifest_files(named) == [named]


def test_a_pipe_is_read_like_a_file(tmp_path: Path):
    """As a shell gives one: `check <(helm template .)`."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(pod("a"),))
    writer.start()
    (path,) = manifest_files(pipe)
    assert names(read_documents(path)) == ["a"]
    writer.join()


def test_a_mounted_config_map_is_read_once_by_its_plain_names(tmp_path: Path):
    write(tmp_path / "..2026_01_01" / "a.yaml", pod("a"))
    (tmp_path / "..data").symlink_to("..2026_01_01")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    assert manifest_files(tmp_path) == [tmp_path / "a.yaml"]
    mount = tmp_path.with_name("mount")
    mount.symlink_to(tmp_path)
    assert manifest_files(mount) == [mount / "a.yaml"]


def test_a_link_to_a_directory_above_is_not_followed_for_ever(tmp_path: Path):
    write(tmp_path / "a.yaml", "")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "up").symlink_to(tmp_path)
    assert manifest_files(tmp_path) == [tmp_path / "a.yaml"]


def test_what_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DecodeError, match=r"missing\.yaml: no such file or directory"):
        manifest_files(tmp_path / "missing.yaml")


def test_a_directory_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(DecodeError, match=f"{tmp_path}: cannot be read: Permission denied"):
        manifest_files(tmp_path)


def test_a_link_to_nothing_is_named(tmp_path: Path):
    (tmp_path / "a.yaml").symlink_to("nothing")
    (path,) = manifest_files(tmp_path)
    with pytest.raises(DecodeError, match=r"a\.yaml: cannot be read: No such file"):
        read_documents(path)


# What is in them.


def test_empty_and_comment_only_documents_are_skipped(tmp_path: Path):
    """Helm output with empty or comment-only documents aborts the run."""
    text = (
        f"---\n# Source: chart/templates/none.yaml\n---\n{pod('a')}\n---\nkind: Service\nmetadata: {{name: s}}\n---\n"
    )
    documents = read_documents(write(tmp_path / "a.yaml", text))
    assert [(document.origin, document.content["kind"]) for document in documents] == [
        (f"{tmp_path}/a.yaml:4", "Pod"),
        (f"{tmp_path}/a.yaml:6", "Service"),
    ]


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "---\n---\n", "null\n", "\ufeff"])
def test_a_file_without_objects_holds_none(text: str):
    assert decode_documents(text, "a.yaml") == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f'{{"kind": "List", "items": [{pod("a")}, {pod("b")}]}}', id="as kubectl get prints it"),
        pytest.param(
            "kind: List\nitems:\n- {kind: Pod, metadata: {name: a}}\n- {kind: Pod, metadata: {name: b}}\n", id="YAML"
        ),
        pytest.param(
            '{"kind":"PodList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"}}]}',
            id="as the API server sends it",
        ),
        pytest.param(
            f'{{"kind":"List","items":[{{"kind":"List","items":[{pod("a")}]}},{pod("b")}]}}', id="a list in a list"
        ),
    ],
)
def test_the_items_of_a_list_are_objects_of_their_own(text: str):
    documents = decode_documents(text, "f")
    assert names(documents) == ["a", "b"]
    assert {document.content["kind"] for document in documents} == {"Pod"}


def test_an_item_is_found_again_by_its_place():
    (document,) = decode_documents(f"---\n\nkind: List\nitems: [{pod('a')}]", "f")
    assert document.origin == "f:3: items[0]"


@pytest.mark.parametrize("text", ["kind: List\n", "kind: List\nitems:\n", "kind: List\nitems: []\n"])
def test_an_empty_list_holds_nothing(text: str):
    assert decode_documents(text, "f") == []


def test_a_kind_whose_name_happens_to_end_in_list_is_an_object():
    (document,) = decode_documents("kind: AllowList\nmetadata: {name: a}\nspec: {items: [1]}\n", "f")
    assert document.content["kind"] == "AllowList"


@pytest.mark.parametrize(
    ("scalar", "want"),
    [
        pytest.param("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z", id="a timestamp stays as written"),
        pytest.param("2026-01-01", "2026-01-01", id="so does a date"),
        pytest.param("12:30", "12:30", id="a time of day is no number of seconds"),
        pytest.param("=", "=", id="the default value of YAML 1.1, as operators' CRDs have it"),
        pytest.param("24576", 24576, id="a whole number"),
        pytest.param("1.5", 1.5, id="a fraction"),
        pytest.param("1e4", "1e4", id="a quantity with an exponent"),
        pytest.param("16Gi", "16Gi", id="a quantity with a suffix"),
        pytest.param("yes", True, id="a truth as kubectl reads it"),
        pytest.param("'yes'", "yes", id="a quoted text"),
        pytest.param("", None, id="nothing"),
        pytest.param("123456789012345678901234567890", 123456789012345678901234567890, id="a number of any length"),
    ],
)
def test_scalars_are_what_they_are_to_kubectl(scalar: str, want: object):
    (document,) = decode_documents(f"kind: A\nvalue: {scalar}\n", "f")
    assert document.content["value"] == want


def test_keys_are_texts_and_aliases_are_written_out():
    (document,) = decode_documents("kind: A\nlabels: {2: &x {a: b}, true: *x}\n", "f")
    labels = document.content["labels"]
    assert labels == {"2": {"a": "b"}, "true": {"a": "b"}}
    assert labels["2"] is not labels["true"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"kind": "A",\n\t"metadata": {"name": "a"}}', id="indented by tabs"),
        pytest.param('\ufeff{"kind": "A", "metadata": {"name": "a"}}', id="with a byte order mark"),
        pytest.param('{"kind": "A", "metadata": {"name": "a", "labels": {"x": "\\ud83d\\ude00"}}}', id="with an emoji"),
        pytest.param('{"kind": "A", "metadata": {"name": "a"}} # said', id="YAML in braces"),
    ],
)
def test_json_is_read_as_any_tool_writes_it(text: str):
    assert names(decode_documents(text, "f")) == ["a"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(
            "kind: Pod\nspec: [\n", "f:3: is not YAML: did not find expected node content", id="an open bracket"
        ),
        pytest.param(
            f"{pod('a')}\n---\nkind: Pod\n  spec: x\n", "f:4: is not YAML: mapping values", id="in the second document"
        ),
        pytest.param(
            "kind: Pod\nspec: {{ .Values.spec }}\n",
            "f:2: is not YAML: found unhashable key",
            id="a template not rendered",
        ),
        pytest.param("kind: Pod\nspec: *base\n", "f:2: is not YAML: found undefined alias", id="an alias of nothing"),
        pytest.param(
            "kind: Pod\nspec: !Ref base\n",
            "f:2: is not YAML: could not determine a constructor",
            id="a tag of another tool",
        ),
        pytest.param(
            "kind: Pod\nname: ä\nspec: \x01\n", "f:3: is not YAML: control characters", id="a control character"
        ),
        pytest.param('{"kind": "Pod",\n"spec" 1}', "f:2: is not YAML: did not find expected", id="broken JSON"),
        pytest.param("[" * 5000, "f:1: is not YAML: exceeded maximum nesting depth", id="brackets without end"),
        pytest.param('{"a":' * 5000, "f:1: is not YAML: exceeded maximum nesting depth", id="JSON without end"),
        pytest.param("kind: A\nvalue: .nan\n", "f:1: has no JSON: Out of range float", id="what JSON cannot say"),
        pytest.param("a text\n", "f:1: is no Kubernetes object, which is a mapping", id="a text"),
        pytest.param("- kind: Pod\n", "f:1: is no Kubernetes object, which is a mapping", id="a bare sequence"),
        pytest.param("\nreplicas: 3\n", "f:2: is no Kubernetes object: it has no kind", id="values of a chart"),
        pytest.param("kind: 3\n", "f:1: is no Kubernetes object: it has no kind", id="a kind that is no text"),
        pytest.param("kind: Pod\nmetadata: a\n", "f:1: metadata must be a mapping", id="metadata that is a text"),
        pytest.param("kind: List\nitems: {a: b}\n", "f:1: items must be a list", id="items that are no list"),
        pytest.param("kind: List\nitems: [{kind: Pod}, a]\n", "f:1: items[1]: is no Kubernetes object", id="an item"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_place(text: str, want: str):
    with pytest.raises(DecodeError) as caught:
        decode_documents(text, "f")
    assert str(caught.value).startswith(want)


@pytest.mark.parametrize("is_pure", [False, True], ids=["libyaml", "without libyaml"])
def test_a_timestamp_is_a_text_whichever_parser_there_is(*, is_pure: bool, monkeypatch: pytest.MonkeyPatch):
    if is_pure:
        monkeypatch.setattr(files, "_LOADER", files._loader(yaml.SafeLoader))
    (document,) = decode_documents("kind: A\n---\n---\nkind: A\nat: 2026-01-01T00:00:00Z\n", "f")[1:]
    assert (document.origin, document.content["at"]) == ("f:4", "2026-01-01T00:00:00Z")


def test_nesting_past_what_python_can_follow_is_told_without_libyaml(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "_LOADER", files._loader(yaml.SafeLoader))
    with pytest.raises(DecodeError, match=r"^f: is nested too deeply$"):
        decode_documents("[" * 2000, "f")


def test_aliases_that_multiply_are_refused_before_they_take_memory():
    tenfold = "\n".join(f"v{i}: &v{i} [{', '.join([f'*v{i - 1}'] * 10)}]" for i in range(1, 12))
    with pytest.raises(DecodeError, match=r"^f:1: its aliases stand for far more than is written$"):
        decode_documents(f"kind: A\nv0: &v0 [x, x]\n{tenfold}\n", "f")


def test_a_value_that_contains_itself_is_refused():
    with pytest.raises(DecodeError, match=r"^f:1: its aliases stand for far more than is written$"):
        decode_documents("kind: A\nvalue: &loop [*loop]\n", "f")


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_bytes(b"kind: Pod\nname: \xff\n")
    with pytest.raises(DecodeError, match=r"a\.yaml:2: is not UTF-8"):
        read_documents(path)


# A directory in place of an API server.


class State:
    """A state directory, and what its takers were told."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        self.calls: list[str] = []
        self.told: dict[str, list[dict[str, Any]]] = {}
        self.directory = StateDirectory(directory, {kind: self._taker(kind) for kind in KINDS})

    def _taker(self, kind: str) -> Any:
        def take(texts: list[bytes]) -> None:
            self.calls.append(kind)
            self.told[kind] = [json.loads(text) for text in texts]

        return take

    def load(self) -> State:
        self.directory.load()
        self.calls.clear()
        return self

    def poll(self) -> list[str]:
        """Return the kinds that were handed over anew."""
        self.calls.clear()
        is_changed = self.directory.poll()
        assert is_changed is bool(self.calls)
        return list(self.calls)

    def names(self, kind: str) -> list[str]:
        return [item["metadata"]["name"] for item in self.told[kind]]

    def limits(self) -> dict[str, Any]:
        return {
            item["metadata"]["name"]: item["spec"]["hard"]["limits.nvidia.com/gpumem"]
            for item in self.told["ResourceQuota"]
        }


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


def test_the_first_load_hands_over_every_kind_the_pods_last(state: State):
    text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: team-a}\n"
    write(state.path / "a.yaml", f"{pod('a')}\n---\n{text}---\n{quota(8000)}")
    assert not state.directory.has_synced
    state.directory.load()
    assert state.directory.has_synced
    assert state.calls == list(KINDS)
    assert {kind: state.names(kind) for kind in KINDS} == {
        "Namespace": ["team-a"],
        "Node": [],
        "ResourceQuota": ["gpu-cap"],
        "Pod": ["a"],
    }


def test_objects_of_other_kinds_and_groups_are_none_of_its_business(state: State):
    write(state.path / "a.yaml", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n")
    write(state.path / "b.yaml", "apiVersion: example.com/v1\nkind: Node\nmetadata: {name: n}\n")
    state.load()
    assert all(items == [] for items in state.told.values())


def test_objects_get_what_the_api_server_would_have_given_them(state: State):
    write(state.path / "a.yaml", f"{pod('a')}\n---\nkind: ResourceQuota\nmetadata: {{name: q, namespace: }}\n")
    write(state.path / "b.yaml", pod("b", namespace="team-a", uid="own"))
    first = state.load().told
    again = State(state.path).load().told
    assert first == again
    (a, b), (q,) = (item["metadata"] for item in first["Pod"]), first["ResourceQuota"]
    assert (a["namespace"], q["metadata"]["namespace"]) == ("default", "default")
    assert (b["namespace"], b["uid"]) == ("team-a", "own")
    assert len({a["uid"], b["uid"], q["metadata"]["uid"], ""}) == 4


def test_pods_of_one_name_in_two_namespaces_are_two(state: State):
    write(state.path / "a.yaml", f"{pod('a', namespace='x')}\n---\n{pod('a', namespace='y')}")
    x, y = (item["metadata"]["uid"] for item in state.load().told["Pod"])
    assert x != y


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("kind: Pod\nspec: [\n", ":3: is not YAML", id="no YAML"),
        pytest.param("\nkind: Pod\nmetadata: {generateName: a-}\n", ":2: the Pod has no metadata.name", id="no name"),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: 5}]}\n",
            r":1: object: .*`str`.*spec\.containers\[0\]\.name",
            id="a field of the wrong type",
        ),
        pytest.param(
            "kind: Namespace\nmetadata: {name: 5}\n", r":1: namespace: .*metadata\.name", id="a name that is a number"
        ),
        pytest.param(
            "kind: ResourceQuota\nmetadata: {name: q}\nspec: {hard: [a]}\n",
            r":1: resourcequota: .*spec\.hard",
            id="a quota",
        ),
    ],
)
def test_the_first_load_refuses_a_broken_file(state: State, text: str, want: str):
    write(state.path / "a.yaml", text)
    with pytest.raises(DecodeError, match=rf"a\.yaml{want}"):
        state.directory.load()
    assert not state.directory.has_synced
    assert state.calls == []


def test_the_first_load_refuses_a_directory_that_is_not_there(tmp_path: Path):
    with pytest.raises(DecodeError, match="no such file or directory"):
        State(tmp_path / "missing").directory.load()


def test_the_first_load_refuses_a_link_to_nothing(state: State):
    (state.path / "a.yaml").symlink_to("nothing")
    with pytest.raises(DecodeError, match=r"a\.yaml: cannot be read: No such file"):
        state.directory.load()


def test_only_the_kinds_that_changed_are_handed_over(state: State):
    write(state.path / "quota.yaml", quota(8000))
    write(state.path / "pods.yaml", pod("a"))
    state.load()
    assert state.poll() == []
    write(state.path / "quota.yaml", quota(4000))
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {"gpu-cap": 4000}
    write(state.path / "b.json", pod("b"))
    assert state.poll() == ["Pod"]
    (state.path / "pods.yaml").unlink()
    assert state.poll() == ["Pod"]
    assert state.names("Pod") == ["b"]


def test_a_file_written_anew_with_the_same_objects_changes_nothing(state: State):
    write(state.path / "a.yaml", quota(8000))
    state.load()
    write(state.path / "a.yaml", f"# The team's limit.\n{quota(8000)}")
    assert state.poll() == []


def test_a_change_that_keeps_size_and_time_is_seen(state: State):
    path = write(state.path / "a.yaml", quota(8000))
    state.load()
    before = path.stat()
    path.write_text(quota(4000))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state.poll() == ["ResourceQuota"]


def test_the_swap_of_a_mounted_config_map_is_seen(state: State):
    write(state.path / "..1" / "a.yaml", quota(8000))
    write(state.path / "..2" / "a.yaml", quota(4000))
    data = state.path / "..data"
    data.symlink_to("..1")
    (state.path / "a.yaml").symlink_to("..data/a.yaml")
    assert state.load().limits() == {"gpu-cap": 8000}
    draft = state.path / "..data_tmp"
    draft.symlink_to("..2")
    draft.replace(data)
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {"gpu-cap": 4000}


def test_a_file_that_breaks_keeps_what_it_held_and_is_told_once(state: State, caplog: pytest.LogCaptureFixture):
    broken = write(state.path / "a.yaml", quota(8000))
    other = write(state.path / "b.yaml", quota(1000, "other"))
    state.load()
    write(broken, "kind: ResourceQuota\nmetadata: [\n")
    write(other, quota(2000, "other"))
    for _ in range(3):
        state.poll()
    assert state.limits() == {"gpu-cap": 8000, "other": 2000}
    assert state.directory.has_synced
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"{broken}:3: is not YAML" in record.message
    assert "what was read of it before still counts" in record.message
    write(broken, quota(4000))
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {"gpu-cap": 4000, "other": 2000}
    write(broken, "kind: ResourceQuota\nmetadata: [\n")
    state.poll()
    assert len(caplog.records) == 2


def test_a_broken_file_is_not_read_again_until_it_changes(state: State, monkeypatch: pytest.MonkeyPatch):
    state.load()
    write(state.path / "a.yaml", "kind: [\n")
    reads: list[Path] = []
    read = state_directory.read_state

    def counted(path: Path) -> Any:
        reads.append(path)
        return read(path)

    monkeypatch.setattr(state_directory, "read_state", counted)
    for _ in range(3):
        assert state.poll() == []
    assert len(reads) == 1


def test_a_broken_file_that_is_deleted_takes_its_objects_along(state: State):
    path = write(state.path / "a.yaml", quota(8000))
    state.load()
    write(path, "kind: [\n")
    assert state.poll() == []
    path.unlink()
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {}


def test_a_file_found_empty_is_believed_at_the_second_look(state: State):
    """An editor truncates a file before it writes: in that moment there must not be no limit."""
    path = write(state.path / "a.yaml", quota(8000))
    state.load()
    path.write_text("")
    assert state.poll() == []
    path.write_text(quota(4000))
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {"gpu-cap": 4000}
    path.write_text("")
    assert state.poll() == []
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {}
    assert state.poll() == []


def test_a_file_written_while_it_is_read_is_read_again(state: State, monkeypatch: pytest.MonkeyPatch):
    path = write(state.path / "a.yaml", quota(8000))
    state.load()
    write(path, quota(1))
    read = state_directory.read_state

    def overtaken(read_path: Path) -> Any:
        found = read(read_path)
        write(path, quota(4000))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(state_directory, "read_state", overtaken)
        assert state.poll() == []
    assert state.limits() == {"gpu-cap": 8000}
    assert state.poll() == ["ResourceQuota"]
    assert state.limits() == {"gpu-cap": 4000}


def test_a_directory_that_vanishes_keeps_what_it_held(state: State, caplog: pytest.LogCaptureFixture):
    write(state.path / "a.yaml", quota(8000))
    state.load()
    away = state.path.with_name("away")
    for _ in range(2):
        caplog.clear()
        state.path.rename(away)
        assert [state.poll(), state.poll()] == [[], []]
        assert state.limits() == {"gpu-cap": 8000}
        assert [record.message for record in caplog.records] == [
            f"{state.path}: no such file or directory; what was read before still counts"
        ]
        away.rename(state.path)
        assert state.poll() == []


def test_the_later_of_two_objects_of_one_name_counts_and_is_told_once(state: State, caplog: pytest.LogCaptureFixture):
    write(state.path / "a.yaml", quota(8000))
    write(state.path / "b.yaml", quota(4000))
    state.load()
    assert state.limits() == {"gpu-cap": 4000}
    write(state.path / "c.yaml", pod("c"))
    state.poll()
    assert [record.message for record in caplog.records] == [
        f"ResourceQuota team-a/gpu-cap stands at {state.path}/a.yaml:1 and at {state.path}/b.yaml:1: the later counts"
    ]


def test_a_pod_copied_with_its_uid_counts_beside_the_first(state: State, caplog: pytest.LogCaptureFixture):
    """The ledger knows pods by UID: two of one would count once."""
    write(state.path / "a.yaml", f"{pod('a', uid='one')}\n---\n{pod('b', uid='one')}")
    a, b = (item["metadata"]["uid"] for item in state.load().told["Pod"])
    assert (a, b != "one") == ("one", True)
    assert "Pod default/b has the uid of Pod default/a, and gets one of its own" in caplog.text
    assert state.directory.pod_uid("default", "b") == b


def test_an_object_that_json_can_hardly_say_stops_nothing(state: State):
    text = '{"kind": "Pod", "metadata": {"name": "a", "annotations": {"x": "\\ud800"}}}'
    write(state.path / "a.yaml", quota(10**30))
    write(state.path / "b.json", text.replace("\\ud800", "\\ud83d\\ude00"))
    assert state.load().limits() == {"gpu-cap": 10**30}
    assert state.told["Pod"][0]["metadata"]["annotations"] == {"x": "😀"}


def test_a_pod_is_looked_up_in_the_files_as_they_are_now(state: State):
    state.load()
    assert state.directory.pod_uid("team-a", "a") is None
    path = write(state.path / "a.yaml", pod("a", namespace="team-a", uid="one"))
    assert state.directory.pod_uid("team-a", "a") == "one"
    assert state.calls == ["Pod"]
    assert state.directory.pod_uid("team-b", "a") is None
    write(path, pod("a", namespace="team-a", uid="two"))
    assert state.directory.pod_uid("team-a", "a") == "two"
    path.unlink()
    assert state.directory.pod_uid("team-a", "a") is None


def test_what_a_taker_could_not_take_is_handed_over_again(tmp_path: Path):
    told: list[int] = []

    def take(texts: list[bytes]) -> None:
        told.append(len(texts))
        if len(told) == 2:
            raise RuntimeError("once")

    state = StateDirectory(tmp_path, dict.fromkeys(KINDS[:3], lambda texts: None) | {"Pod": take})
    state.load()
    write(tmp_path / "a.yaml", pod("a"))
    with pytest.raises(RuntimeError, match="once"):
        state.poll()
    write(tmp_path / "b.yaml", pod("b"))
    assert state.poll()
    assert told == [0, 1, 2]


def test_look_ups_and_polls_of_many_threads_tell_takers_one_at_a_time(tmp_path: Path):
    inside = threading.Lock()
    overlaps: list[str] = []
    seen: list[int] = []

    def take(texts: list[bytes]) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append("two at once")
            return
        seen.append(len(texts))
        inside.release()

    directory = StateDirectory(tmp_path, dict.fromkeys(KINDS, take))
    directory.load()
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait()
        for turn in range(20):
            write(tmp_path / f"{number}.yaml", pod(f"p-{number}-{turn}"))
            assert directory.pod_uid("default", f"p-{number}-{turn}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []
    directory.poll()
    assert seen[-1] == 8
