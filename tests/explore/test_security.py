"""What the server refuses: other hosts' names, other sites, other paths, too much."""

import socket

import pytest

pytest.importorskip("starlette", reason="the explorer's libraries are an extra: kvcalc[explore]")

from kvcalc.core.errors import InputError
from kvcalc.explore.security import MAX_BODY_BYTES
from kvcalc.explore.server import Place, serve

PAGE = "/"
ASKED = "/api/size?model=llama2-7b"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8977", "127.0.0.1.evil.example", "192.168.1.5:8977", "", "[::1"]
)
@pytest.mark.parametrize("address", [PAGE, ASKED, "/static/app.js"])
def test_another_name_for_this_machine_is_not_answered(client, host, address):
    assert client.get(address, headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", ["127.0.0.1:8977", "localhost:8977", "localhost", "[::1]:8977", "127.0.0.2"])
def test_its_own_names_are_answered(client, host):
    assert client.get(ASKED, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost:8977"])
def test_another_origin_may_not_ask(client, origin):
    assert client.get(ASKED, headers={"Origin": origin}).status_code == 403
    assert client.post("/api/reconcile", content=b"x", headers={"Origin": origin}).status_code == 403


def test_the_pages_own_origin_may_ask(client):
    assert client.get(ASKED, headers={"Origin": "http://127.0.0.1:8977"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_other_sites_may_link_here_but_load_nothing(client, site):
    fetched = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    assert client.get(ASKED, headers=fetched).status_code == 403
    opened = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get(PAGE, headers=opened).status_code == 200
    assert client.get(PAGE, headers={**opened, "Sec-Fetch-Dest": "iframe"}).status_code == 403


def test_what_is_too_large_is_refused_by_its_length_and_by_what_comes(client):
    assert client.post("/api/reconcile", content=b"x" * (MAX_BODY_BYTES + 1)).status_code == 413
    pieces = (b"x" * 100_000 for _ in range(90))
    assert client.post("/api/reconcile", content=pieces).status_code == 413
    assert client.post("/api/reconcile", content=b"x" * MAX_BODY_BYTES).status_code == 422
    assert client.post("/api/reconcile", content=b"x", headers={"Content-Length": "-1"}).status_code == 413


@pytest.mark.parametrize(
    "address",
    ["/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2f..%2fcli%2fmain.py", "/static//etc/passwd",
     "/static/views/../../server.py", "/static/", "/server.py", "/api/", "/api/nonesuch", "/static/vega.js/.."],
)  # fmt: skip
def test_no_other_file_is_served(client, address):
    assert client.get(address).status_code == 404


@pytest.mark.parametrize("field", ["model", "gpu", "draft"])
@pytest.mark.parametrize(
    "path", ["/etc/passwd", "./model.yaml", "../x.json", "config.json", "file:///etc/passwd", "org/unknown", "."]
)
def test_no_file_is_read_and_nothing_fetched_for_a_name(client, monkeypatch, tmp_path, field, path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("something was fetched"))
    asked = {"model": "llama3.1-70b", "gpu": "h200", "draft": "llama3.1-8b", field: path}
    found = client.get("/api/speculate", params=asked)
    assert found.status_code == 422
    assert found.json()["error"]["field"] == field
    assert "unknown" in found.json()["error"]["what"]


@pytest.mark.parametrize("address", [PAGE, "/static/app.js", ASKED, "/nonesuch", "/api/size?model=x"])
def test_every_answer_forbids_what_the_page_does_not_need(client, address):
    headers = client.get(address).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client, method):
    assert client.request(method, ASKED).status_code == 405
    assert client.request(method, PAGE).status_code == 405


def test_served_to_a_network_it_answers_to_addresses_but_not_to_names(client_of):
    open_to_all = client_of(Place(host="0.0.0.0", token=""), base_url="http://192.168.1.5:8977")  # noqa: S104
    assert open_to_all.get(ASKED).status_code == 200
    assert open_to_all.get(ASKED, headers={"Host": "evil.example"}).status_code == 421
    assert open_to_all.get(ASKED, headers={"Host": socket.gethostname()}).status_code == 200


def test_a_port_that_is_taken_is_told():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="cannot listen"):
            serve(Place(port=taken.getsockname()[1]), ready=lambda _: None)


@pytest.mark.parametrize("token", ["short", "with space", "x" * 101, "umlaut-ä-umlaut"])
def test_a_token_that_cannot_be_is_told(token):
    with pytest.raises(InputError, match="token must be"):
        Place(token=token)


def test_a_token_is_asked_for_where_others_reach_the_page():
    assert Place().token == Place(host="localhost").token == Place(host="::1").token == ""
    open_to_all = Place(host="0.0.0.0"), Place(host="192.168.1.5")  # noqa: S104
    assert len({place.token for place in open_to_all} - {""}) == 2
    assert Place(host="192.168.1.5", token="").token == ""
    assert Place(token="one-of-mine").token == "one-of-mine"  # noqa: S105, S106


@pytest.mark.parametrize(
    "headers", [{"Cookie": "kvcalc=\x01; ==;;"}, {"Authorization": "Bearer"}, {"Authorization": "x"}]
)
def test_headers_without_the_token_are_refused(client_of, headers):
    guarded = client_of(Place(token="one-of-mine"))  # noqa: S106
    assert guarded.get(ASKED, headers=headers).status_code == 401
    assert guarded.get(f"{ASKED}&token=one-of-mine").status_code == 401  # in the page's address alone
    assert guarded.get("/?token=%ff").status_code == 401
    assert guarded.get(ASKED, headers={"Authorization": "bearer one-of-mine"}).status_code == 200
    assert guarded.get("/", params={"token": "one-of-mine"}, headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_cannot_be_is_told(port):
    with pytest.raises(InputError, match="port must be"):
        Place(port=port)
