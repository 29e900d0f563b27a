"""The command line: errors are one clean message, and nothing starts before what was asked is understood."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from millpond import cli
from millpond.demo import job, show
from millpond.demo.job import Run
from millpond.demo.report import Outcome
from millpond.errors import UnavailableError

RIGHT = Outcome(4000, 20.0, 200.0, 48, 0, {"planes": {"hits": 3, "misses": 1, "hit_rate": 0.75}}, resumed=False)


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli.cli, ["demo", *arguments])
    return result.exit_code, result.stdout


@pytest.fixture
def no_run(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    asked: list[tuple] = []

    def run(*arguments: object, **named: object) -> Run:
        asked.append((*arguments, named))
        return Run(RIGHT, {"requests": "2"}, [], "{}", "lmdb:///kv")

    monkeypatch.setattr(job, "run", run)
    return asked


def test_an_error_of_ours_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.txt").write_text("")
    monkeypatch.setattr("sys.argv", ["millpond", "demo", "--workdir", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        f"millpond: --workdir {tmp_path}: expected an empty folder or one of a millpond demo "
        "(with millpond-demo.json), found 'mine.txt'. Name another folder.\n"
    )


def test_a_date_that_is_none_is_refused_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["millpond", "demo", "--until", "31.1.2013", "--workdir", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "--until '31.1.2013': expected a date such as 2013-02-01" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_json_goes_to_stdout_alone_and_is_the_issue_of_the_run(no_run: list) -> None:
    code, out = invoke("--json")
    assert code == 0
    assert out == (
        '{"events":4000,"seconds":20.0,"events_per_second":200.0,"features_checked":48,"mismatches":0,'
        '"caches":{"planes":{"hits":3,"misses":1,"hit_rate":0.75}},"resumed":false,"fetcher":{},"consistency":{}}\n'
    )


def test_json_goes_to_a_file_if_one_is_named(no_run: list, tmp_path: Path) -> None:
    code, out = invoke("--json", str(tmp_path / "out.json"), "--workdir", "elsewhere")
    assert code == 0
    assert (tmp_path / "out.json").read_text().startswith('{"events":4000')
    assert "features checked" in out
    assert "elsewhere/summary.png" in out


def test_a_json_file_that_cannot_be_written_is_named(no_run: list, tmp_path: Path) -> None:
    request = show.Request(None, None, tmp_path, serve=False, port=1, json_file=str(tmp_path), quiet=True)
    with pytest.raises(UnavailableError, match=str(tmp_path)):
        show.show(request)


def test_mismatches_are_listed_and_end_in_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Outcome(4000, 20.0, 200.0, 48, 1, {}, resumed=False)
    monkeypatch.setattr(job, "run", lambda *_a, **_k: Run(wrong, {}, ["in-process, flight 2: ..."], "{}", "lmdb:///kv"))
    code, out = invoke()
    assert code == 1
    assert "in-process, flight 2" in out


def test_the_number_of_events_and_the_day_reach_the_run(no_run: list) -> None:
    invoke("--events", "4000", "--until", "2013-02-01", "--workdir", "here")
    ((asked, path, named),) = no_run
    assert (asked.events, asked.until, path, named) == (
        4000,
        "2013-02-01",
        Path("here"),
        {"quiet": False, "store": None},
    )
    assert invoke("--events", "0")[0] == 2


def test_the_backend_and_its_cache_reach_the_run_and_the_advice_to_go_on(no_run: list) -> None:
    _, out = invoke("--backend", "rocksdb", "--state-cache", "50")
    ((asked, _, _),) = no_run
    assert (asked.backend, asked.state_cache) == ("rocksdb", 50)
    assert "demo --backend rocksdb --state-cache 50 --workdir" in out
    assert invoke("--backend", "rockdb")[0] == 2
    assert invoke("--state-cache", "-1")[0] == 2


def test_the_store_reaches_the_run_with_its_password_and_the_advice_without(no_run: list) -> None:
    _, out = invoke("--store", "redis://ada:secret@localhost:6379")
    ((asked, _, named),) = no_run
    assert (asked.store, named["store"]) == (
        "redis://ada:***@localhost:6379",
        "redis://ada:secret@localhost:6379",
    )
    assert "--store redis://ada:***@localhost:6379" in out
    assert "secret" not in out


def test_the_version_is_said() -> None:
    assert CliRunner().invoke(cli.cli, ["--version"]).output.startswith("millpond, version ")
