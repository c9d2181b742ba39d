import threading

import pytest

from shim.base import deadline
from shim.domain.errors import Cancelled, Unavailable
from shim.logs.mailbox import Mailbox
from shim.logs.protocol import Answer, Drain, Follow, Order, Reopen, Report


def unsent(mailbox: Mailbox) -> list[Order]:
    found = []
    while (first := mailbox.first_unsent()) is not None:
        found.append(first.order)
        mailbox.mark_sent()
    return found


def test_an_answer_reaches_its_caller() -> None:
    mailbox = Mailbox()
    reported: list[Answer] = []
    pending = mailbox.put(Report(), then=reported.append)
    answer = Answer(ticket=pending.ticket, error="no")
    answering = threading.Thread(target=mailbox.take_answer, args=(answer,))
    answering.start()
    assert mailbox.wait_answer(pending, seconds=20, what="ask") == answer
    answering.join()
    mailbox.take_answer(answer)  # a second answer
    mailbox.take_answer(Answer(ticket=77))  # nobody waits for it
    assert reported == [answer]


def test_a_missing_answer_raises_unavailable() -> None:
    mailbox = Mailbox()
    pending = mailbox.put(Report())
    with pytest.raises(Unavailable, match="ask: the log process does not answer"):
        mailbox.wait_answer(pending, seconds=0.01, what="ask")


def test_a_cancelled_client_stops_waiting() -> None:
    mailbox = Mailbox()
    pending = mailbox.put(Report())
    scope = deadline.Scope()
    timer = threading.Timer(0.01, scope.cancel)
    timer.start()
    with deadline.entered(scope), pytest.raises(Cancelled):
        mailbox.wait_answer(pending, seconds=deadline.LONGEST, what="ask")
    timer.join()


def test_close_ends_every_wait() -> None:
    mailbox = Mailbox()
    pending = mailbox.put(Report())
    mailbox.close()
    with pytest.raises(Unavailable):
        mailbox.wait_answer(pending, seconds=deadline.LONGEST, what="ask")


def test_the_next_process_gets_unanswered_orders_in_order() -> None:
    mailbox = Mailbox()
    orders: list[Order] = [Drain(id="a"), Reopen(id="b"), Drain(id="c"), Reopen(id="d")]
    pending = [mailbox.put(order) for order in orders]
    mailbox.mark_sent()
    mailbox.mark_sent()
    mailbox.take_answer(Answer(ticket=pending[0].ticket))
    mailbox.repeat([Report()])
    assert unsent(mailbox) == [Report(), *orders[1:]]


def test_the_first_orders_of_a_process_are_not_sent_to_the_next() -> None:
    mailbox = Mailbox()
    follow, drain = Follow(id="a", docker="/docker", cri="/cri"), Drain(id="a")
    mailbox.put(drain)
    for _ in range(3):  # these processes die before they answer
        mailbox.repeat([follow])
        assert unsent(mailbox) == [follow, drain]


def test_answers_to_the_first_orders_are_accepted() -> None:
    mailbox = Mailbox()
    asked = mailbox.put(Report())
    mailbox.repeat([Reopen(id="a")])
    first = mailbox.first_unsent()
    assert first is not None
    assert first.ticket != asked.ticket
    mailbox.take_answer(Answer(ticket=first.ticket))
    assert asked.answer is None
