"""Configs from the Hugging Face hub, with a stand-in for its library: nothing is fetched."""

from __future__ import annotations

import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc import api
from kvcalc.core.errors import ProfileError, UnknownNameError
from kvcalc.importers.hub import fetch_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_UNKNOWN = UnknownNameError("no model 'owner/name'", hint="did you mean another?")


def _fail(*_: Any) -> Any:
    raise AssertionError("not to be called")


def _hub(
    monkeypatch: pytest.MonkeyPatch,
    *,
    cached: Any = None,
    download: Callable[..., Any] = _fail,
    metadata: Callable[..., Any] | None = None,
) -> None:
    hub = ModuleType("huggingface_hub")
    lookup = cached if callable(cached) else lambda *_: cached
    vars(hub).update(try_to_load_from_cache=lookup, hf_hub_download=download)
    vars(hub).update(hf_hub_url=lambda *_: "", get_hf_file_metadata=metadata or (lambda *_, **__: None))
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "snapshot" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 3}))
    return path


def test_cached_config_is_used_without_the_network(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    _hub(monkeypatch, cached=str(config))
    assert fetch_config("owner/name", _UNKNOWN) == config
    assert api.load_model("some-owner/some-name").layers == 3


@pytest.mark.parametrize("cached", [None, object()], ids=["not cached", "known not to be there"])
def test_config_is_downloaded_where_it_is_not_cached(
    monkeypatch: pytest.MonkeyPatch, config: Path, cached: object
) -> None:
    asked: list[tuple[str, str]] = []

    def download(hub_id: str, name: str) -> str:
        asked.append((hub_id, name))
        return str(config)

    _hub(monkeypatch, cached=cached, download=download)
    assert fetch_config("owner/name", _UNKNOWN) == config
    assert asked == [("owner/name", "config.json")]


def test_without_the_library_the_hint_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UnknownNameError, match="no model 'owner/name'") as caught:
        fetch_config("owner/name", _UNKNOWN)
    assert caught.value.hint == (
        "did you mean another?; to read owner/name from the hub: pip install 'kvcalc[hub]'"
    )  # fmt: skip
    with pytest.raises(UnknownNameError) as caught:
        fetch_config("owner/name", UnknownNameError("no model"))
    assert caught.value.hint.startswith("to read owner/name")


# The hub's own classes, with their ancestry.
_Http = type("HfHubHTTPError", (OSError,), {})
_Repository = type("RepositoryNotFoundError", (_Http,), {})
_Gated = type("GatedRepoError", (_Repository,), {})
_Entry = type("EntryNotFoundError", (Exception,), {})
_RemoteEntry = type("RemoteEntryNotFoundError", (_Http, _Entry), {})
_LocalEntry = type("LocalEntryNotFoundError", (FileNotFoundError, _Entry), {})
_Offline = type("OfflineModeIsEnabled", (ConnectionError,), {})


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (_Gated("401 Client Error.\n\nCannot access gated repo"), "access to it is restricted"),
        (_Repository("404 Client Error.\n\nRepository Not Found"), "no such model, or it is private"),
        (_RemoteEntry("404 Client Error.\n\nEntry Not Found"), "has no config.json"),
        (_LocalEntry("An error happened while trying to locate the file"), "cannot be reached"),
        (_Offline("Cannot reach https://…: offline mode is enabled."), "switched off"),
        (_Http("503 Server Error: busy\nand more\nlines"), "fetched: 503 Server Error: busy$"),
        (TimeoutError(), "fetched: TimeoutError$"),
        (ValueError("x" * 5000), "fetched: x{200}$"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_every_failure_of_the_hub_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    for place in ({"download": fail}, {"cached": fail}):
        _hub(monkeypatch, **place)
        with pytest.raises(ProfileError, match=f"(?m){reason}") as caught:
            fetch_config("owner/name", _UNKNOWN)
        assert "\n" not in caught.value.message
        assert "hf auth login" in caught.value.hint


def test_a_hub_that_cannot_be_reached_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class ConnectError(Exception):
        """As the HTTP library has it."""

    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectError("[Errno -2] Name or service not known")

    _hub(monkeypatch, metadata=unreachable)
    with pytest.raises(ProfileError, match="the hub cannot be reached, and the config is not in its cache"):
        fetch_config("owner/name", _UNKNOWN)
