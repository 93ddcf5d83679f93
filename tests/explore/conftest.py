"""The server as its page asks it, in this process."""

import asyncio
from threading import Thread

import pytest


class Client:
    """Asks an application, on a loop of its own thread; what it raises is raised here."""

    def __init__(self, app, base_url="http://127.0.0.1:8977"):
        import httpx

        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self._asked = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base_url)

    def request(self, method, address, **given):
        if hasattr(given.get("content"), "__next__"):
            given["content"] = _pieces(given["content"])
        return self._run(self._asked.request(method, address, **given))

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def get(self, address, **given):
        return self.request("GET", address, **given)

    def post(self, address, **given):
        return self.request("POST", address, **given)

    def close(self):
        self._run(self._asked.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Here:
    """Computes in this process, where tests can reach what is asked with."""

    def ask(self, question, tell=None):
        from kvcalc.explore.answers import reply_to

        return reply_to(question, tell)

    def kill(self):
        pass


async def _pieces(given):
    for piece in given:
        yield piece


@pytest.fixture(scope="session")
def client_of():
    """Return a function that makes a client of a server at a place."""
    pytest.importorskip("httpx", reason="asking the explorer needs httpx: kvcalc[test]")
    from kvcalc.explore.server import Place, application
    from kvcalc.explore.turns import Workers

    made = []

    def make(place=None, worker=Here, **given):
        place = place or Place()
        made.append(Client(application(place, Workers(worker, limit_s=place.limit_s)), **given))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.fixture(scope="session")
def client(client_of):
    return client_of()
