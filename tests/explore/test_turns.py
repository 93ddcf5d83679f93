"""Who is answered when: clients in turn, slow questions beside quick ones, and an end to each."""

import asyncio
from threading import Event

import pytest

pytest.importorskip("starlette", reason="the explorer's libraries are an extra: kvcalc[explore]")

from kvcalc.child import ChildEndedError
from kvcalc.explore import turns
from kvcalc.explore.answers import WARM_UP, Asked, Reply
from kvcalc.explore.turns import BusyError, Lane, TooSlowError, Workers


class Fake:
    """A worker that answers at once, or, asked for `slow`, when it is told to; each remembers what it was asked."""

    def __init__(self, made):
        self.asked, self.ended, self.free = [], Event(), Event()
        made.append(self)

    def ask(self, asked):
        if asked != WARM_UP:
            self.asked.append(asked.text)
        if asked.name == "slow":
            while not self.free.wait(0.01):
                if self.ended.is_set():
                    raise ChildEndedError
        return Reply(200, b"")

    def kill(self):
        self.ended.set()


_PATIENT_S = 60


@pytest.fixture
def made(monkeypatch):
    """The workers that were made. Times are short; a test makes those long that must not pass."""
    monkeypatch.setattr(turns, "_QUICK_S", 0.05)
    monkeypatch.setattr(turns, "_GRACE_S", 0.05)
    return []


def run(made, test, limit_s=_PATIENT_S):
    async def ran():
        workers = Workers(lambda: Fake(made), limit_s=limit_s)
        await asyncio.wait_for(test(workers), 2 * _PATIENT_S)
        workers.close()

    asyncio.run(ran())


def test_clients_take_turns():
    async def test():
        lane, order = Lane(1, 1), []

        async def ask(client):
            await lane.enter(client)
            order.append(client)
            lane.leave(client)

        await lane.enter("first")
        asked = [asyncio.create_task(ask(client)) for client in "aaaabbc"]
        await asyncio.sleep(0)
        asked[1].cancel()
        lane.leave("first")
        await asyncio.gather(*asked, return_exceptions=True)
        assert "".join(order) == "abcaba"

    asyncio.run(test())


def test_one_client_leaves_room_for_others():
    lane = Lane(3, 2)
    assert [lane.enter_now(client) for client in ("a", "a", "a", "b", "c")] == [True, True, False, True, False]


def test_one_client_waits_with_so_many_questions_and_all_with_so_many(monkeypatch):
    monkeypatch.setattr(turns, "_MAX_WAITING_PER_CLIENT", 2)
    monkeypatch.setattr(turns, "_MAX_WAITING", 3)

    async def test():
        lane = Lane(1, 1)
        await lane.enter("a")
        waiting = [asyncio.create_task(lane.enter("a")) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await lane.enter("a")
        waiting.append(asyncio.create_task(lane.enter("b")))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await lane.enter("c")
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        lane.leave("a")
        assert lane.enter_now("c")

    asyncio.run(test())


def test_quick_questions_are_all_asked_of_one_worker(made):
    async def test(workers):
        await asyncio.gather(*(workers.answer(Asked("size", (), str(i)), client=str(i)) for i in range(20)))
        assert len(made) == 1
        assert len(made[0].asked) == 20

    run(made, test)


@pytest.mark.parametrize("pace", ["quick", "pasted", "slow"])
def test_a_slow_question_holds_up_no_quick_one(made, pace):
    async def test(workers):
        long = asyncio.create_task(workers.answer(Asked("slow"), client="a", pace=pace))
        await asyncio.sleep(0.02)
        for _ in range(3):
            await workers.answer(Asked("size"), client="a")
        assert not long.done()
        made[0].free.set()
        await long
        assert not made[0].ended.is_set()

    run(made, test)


def test_what_takes_too_long_is_ended_and_the_next_is_answered(made, monkeypatch):
    async def test(workers):
        for pace in ("slow", "pasted", "quick"):
            with monkeypatch.context() as short:
                short.setattr(workers, "limit_s", 0.3)
                with pytest.raises(TooSlowError):
                    await workers.answer(Asked("slow"), client="a", pace=pace)
            await workers.answer(Asked("size"), client="a", pace=pace)
            assert await asyncio.to_thread(made[-2].ended.wait, _PATIENT_S)
        assert [worker.ended.is_set() for worker in made] == [True, False] * 3

    run(made, test)


def test_what_turns_out_slow_where_enough_are_slow_is_ended(made, monkeypatch):
    async def test(workers):
        long = [asyncio.create_task(workers.answer(Asked("slow"), client=client, pace="slow")) for client in "aab"]
        await asyncio.sleep(0.05)
        with pytest.raises(BusyError):
            await workers.answer(Asked("slow"), client="c")
        monkeypatch.setattr(turns, "_QUICK_S", _PATIENT_S)
        await workers.answer(Asked("size"), client="c")
        await workers.answer(Asked("size"), client="c", pace="pasted")
        for worker in made:
            worker.free.set()
        await asyncio.gather(*long)

    run(made, test)


def test_who_leaves_is_computed_for_no_longer(made, monkeypatch):
    async def test(workers):
        for pace in ("slow", "pasted", "quick"):
            asked = asyncio.create_task(workers.answer(Asked("slow"), client="a", pace=pace))
            await asyncio.sleep(0.02)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert await asyncio.to_thread(made[-1].ended.wait, _PATIENT_S)
        # one that comes to an end soon is kept, for what it remembers
        await workers.answer(Asked("size"), client="a")
        count = len(made)
        monkeypatch.setattr(turns, "_GRACE_S", _PATIENT_S)
        asked = asyncio.create_task(workers.answer(Asked("slow"), client="a"))
        await asyncio.sleep(0.02)
        asked.cancel()
        made[-1].free.set()
        await workers.answer(Asked("size"), client="a")
        assert len(made) == count

    run(made, test)


def test_a_worker_that_ends_by_itself_is_told_and_replaced(made):
    async def test(workers):
        await workers.answer(Asked("size"), client="a")
        made[0].kill()
        with pytest.raises(ChildEndedError):
            await workers.answer(Asked("slow"), client="a")
        await workers.answer(Asked("size"), client="a")
        assert len(made) == 2

    run(made, test)


def test_a_slow_answer_leaves_its_worker_where_the_next_such_question_is_asked(made):
    async def test(workers):
        slow = asyncio.create_task(workers.answer(Asked("slow"), client="a", pace="pasted"))
        await asyncio.sleep(0.1)
        await workers.answer(Asked("size"), client="a", pace="pasted")
        made[0].free.set()
        await slow
        await workers.answer(Asked("size", (), "next"), client="a", pace="pasted")
        assert made[0].asked[-1] == "next"
        assert await asyncio.to_thread(made[1].ended.wait, _PATIENT_S)
        assert len(made) == 2

    run(made, test)


def test_closing_ends_what_runs_and_what_waits(made):
    async def test(workers):
        asked = [asyncio.create_task(workers.answer(Asked("slow"), client="a", pace="slow")) for _ in range(5)]
        await asyncio.sleep(0.05)
        workers.close()
        ended = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in ended] == [BusyError] * 5
        assert all(worker.ended.is_set() for worker in made)

    run(made, test)
