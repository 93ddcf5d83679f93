"""``kvcalc explore`` where it cannot start: what is missing or taken is told, with what to do."""

import pytest

from kvcalc.cli.main import main


def _told(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main(arguments)
    return done.value.code, capsys.readouterr()


def test_a_missing_library_is_told_with_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr("kvcalc.cli.explore.find_spec", lambda _: None)
    code, printed = _told(["explore", "--no-browser"], capsys)
    assert code == 2
    assert not printed.out
    assert 'hint: pip install "kvcalc[explore]"' in printed.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "99999"], "port must be"),
        (["--host", "nowhere.invalid"], "cannot listen"),
        (["--seconds-per-question", "0.5"], "seconds-per-question must be from 1 to 3,600, not 0.5"),
        (["--seconds-per-question", "nan"], "seconds-per-question must be a number"),
    ],
)
def test_a_place_that_cannot_be_is_told(arguments, words, capsys):
    pytest.importorskip("uvicorn")
    code, printed = _told(["explore", "--no-browser", *arguments], capsys)
    assert code == 2
    assert words in printed.err
