"""What `hami-quota lint` prints, and how it exits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("hami-quota")

TABLE = """\
FAMILY   AMOUNT  RESOURCE                      UNIT                        QUOTA KEY
NVIDIA   count   nvidia.com/gpu                cards                       limits.RESOURCE
NVIDIA   memory  nvidia.com/gpumem             units of 10 MiB             limits.RESOURCE
NVIDIA   memory  nvidia.com/gpumem-percentage  percent of a card's memory
Enflame  count   enflame.com/drs-gcu           containers with slices      limits.RESOURCE
Enflame  memory  enflame.com/gcu-memory        MiB                         limits.RESOURCE
Enflame  cores   enflame.com/gcu-core          percent of a card's cores   limits.RESOURCE
"""

GOOD = """\
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  memoryFactor: 10
"""
MISSPELT = GOOD + "  resourceCoresName: nvidia.com/gpucores\n"
PROBLEM = "line 6: nvidia.resourceCoresName: HAMi reads no such key; did you mean resourceCoreName?"


def lint(directory: Path, text: str, *arguments: str) -> tuple[int, str, str]:
    (directory / "config.yaml").write_text(text, encoding="utf-8")
    done = subprocess.run(
        [COMMAND, "lint", "--device-config", "config.yaml", *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [(), ("--strict",)])
def test_a_file_without_warnings(tmp_path: Path, arguments: tuple[str, ...]):
    assert lint(tmp_path, GOOD, *arguments) == (0, TABLE, "")


@pytest.mark.parametrize(("arguments", "want"), [((), 0), (("--strict",), 1)])
def test_a_misspelt_key_is_told_and_is_an_error_only_when_strict(tmp_path: Path, arguments: tuple[str, ...], want: int):
    code, printed, told = lint(tmp_path, MISSPELT, *arguments)
    assert (code, printed) == (want, TABLE)
    assert told == f"warning: config.yaml: {PROBLEM}\n"


def test_serve_logs_it_once(tmp_path: Path):
    (tmp_path / "config.yaml").write_text(MISSPELT, encoding="utf-8")
    options = ("--device-config", "config.yaml", "--state", ROOT / "examples" / "cluster", "--certs", "nowhere")
    done = subprocess.run([COMMAND, "serve", *options], cwd=tmp_path, capture_output=True, text=True, check=False)
    warning, error = done.stderr.splitlines()
    assert warning.endswith(f" WARNING webhook.cli.serve: config.yaml: {PROBLEM}")
    assert error.startswith("hami-quota: --certs nowhere: ")


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param("", "document: is empty: mount HAMi's device-config.yaml", id="an empty file"),
        pytest.param(
            GOOD.replace("10", "ten"),
            "line 5: nvidia.memoryFactor: must be an integer, and is a text",
            id="a wrong type",
        ),
    ],
)
@pytest.mark.parametrize("arguments", [(), ("--strict",), ("-o", "markdown")])
def test_a_file_that_must_not_be_started_with(tmp_path: Path, text: str, want: str, arguments: tuple[str, ...]):
    assert lint(tmp_path, text, *arguments) == (2, "", f"hami-quota: config.yaml: {want}\n")


def test_a_file_that_is_not_there(tmp_path: Path):
    code, printed, told = lint(tmp_path, GOOD, "--device-config", "nowhere.yaml")
    assert (code, printed) == (2, "")
    assert told.startswith("hami-quota: --device-config nowhere.yaml: ")


def test_the_table_of_hamis_default_fits_on_a_screen():
    done = subprocess.run(
        [COMMAND, "lint", "--strict", "--device-config", "examples/device-config.yaml"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert len({line.split()[0] for line in lines[1:]}) == 25
