"""What commands print, to the letter: each text is a file here, by the name of its case.

`HAMI_QUOTA_REWRITE=1` writes the files anew; read the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
COMMAND = Path(sys.executable).with_name("hami-quota")

_CLUSTER = ("--state", "examples/cluster", "--device-config", "examples/device-config.yaml")

README_CASE = ("usage", "-A", "--pods", *_CLUSTER)

CASES = {
    "usage": ("usage", *_CLUSTER, "-A"),
    "usage-one-namespace": ("usage", *_CLUSTER, "-n", "team-a"),
    "usage-nothing": ("usage", *_CLUSTER, "-n", "nowhere"),
    "usage-pods": README_CASE,
    "usage-wide": ("usage", *_CLUSTER, "-A", "-o", "wide"),
    "usage-wide-pods": ("usage", *_CLUSTER, "-A", "-o", "wide", "--pods"),
    "usage-json": ("usage", *_CLUSTER, "-A", "-o", "json"),
    "usage-json-pods": ("usage", *_CLUSTER, "-A", "-o", "json", "--pods"),
}


def printed(name: str) -> str:
    done = subprocess.run([COMMAND, *CASES[name]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("name", CASES)
def test_a_command_prints_what_it_printed(name: str):
    text = printed(name)
    path = HERE / f"{name}.txt"
    if os.environ.get("HAMI_QUOTA_REWRITE") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_text_is_left_of_a_case_that_is_gone():
    assert {path.stem for path in HERE.glob("*.txt")} == set(CASES)


def test_the_readme_shows_what_is_printed():
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```\n$ hami-quota {' '.join(README_CASE)}\n{printed('usage-pods')}```\n" in shown


@pytest.mark.parametrize("name", ["usage", "usage-one-namespace", "usage-pods"])
def test_a_table_fits_on_a_screen(name: str):
    lines = (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 100
    assert lines == [line.rstrip() for line in lines]


def test_json_says_what_the_table_says():
    document = json.loads((HERE / "usage-json.txt").read_text(encoding="utf-8"))
    figures = [
        [entry["namespace"], row["quota"], str(row["used"]), str(row["limit"]), f"{row['percent']}%"]
        for entry in document["namespaces"]
        for row in entry["keys"]
    ]
    lines = [line.split() for line in (HERE / "usage.txt").read_text(encoding="utf-8").splitlines()]
    assert [[*line[:2], *line[3:6]] for line in lines[1:]] == figures
