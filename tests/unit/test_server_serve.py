from __future__ import annotations

import pytest

from webhook.errors import SettingsError
from webhook.server.serve import check_one_worker


@pytest.mark.parametrize(
    ("workers", "environ"),
    [
        pytest.param(1, {}, id="the default"),
        pytest.param(1, {"WEB_CONCURRENCY": "1"}, id="one, by gunicorn's variable"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "--workers=1 --bind :80"}, id="one, by gunicorn's arguments"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": ""}, id="no arguments"),
    ],
)
def test_one_worker_is_accepted(workers: int, environ: dict[str, str]) -> None:
    check_one_worker(workers, environ)


@pytest.mark.parametrize(
    ("workers", "environ", "want"),
    [
        pytest.param(2, {}, "--workers '2'", id="two by option"),
        pytest.param(0, {}, "--workers '0'", id="none"),
        pytest.param(1, {"WEB_CONCURRENCY": "4"}, "WEB_CONCURRENCY '4'", id="four by gunicorn's variable"),
        pytest.param(1, {"WEB_CONCURRENCY": "many"}, "WEB_CONCURRENCY 'many'", id="a variable that is no number"),
        pytest.param(1, {"WEB_CONCURRENCY": ""}, "WEB_CONCURRENCY ''", id="an empty variable, on which gunicorn fails"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "-w 4"}, "GUNICORN_CMD_ARGS: --workers '4'", id="a short argument"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "-w4"}, "GUNICORN_CMD_ARGS: --workers '4'", id="a joined argument"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "--preload --workers=2"}, "--workers '2'", id="a long argument"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "--workers"}, "GUNICORN_CMD_ARGS", id="an argument without a value"),
        pytest.param(1, {"GUNICORN_CMD_ARGS": "'"}, "GUNICORN_CMD_ARGS", id="arguments that cannot be read"),
    ],
)
def test_any_other_number_is_refused_by_the_name_of_who_asked(workers: int, environ: dict[str, str], want: str) -> None:
    with pytest.raises(SettingsError, match=want):
        check_one_worker(workers, environ)


def test_gunicorns_other_arguments_are_said_to_be_unused(caplog: pytest.LogCaptureFixture) -> None:
    check_one_worker(1, {"GUNICORN_CMD_ARGS": "--preload --threads 8"})
    assert "--preload --threads 8" in caplog.text
