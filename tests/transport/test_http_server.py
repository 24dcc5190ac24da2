"""What clients of the HTTP server get, and what they can do to it and to each other."""

from __future__ import annotations

import http.client
import itertools
import socket
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.transport import buffers, http_server, listener
from holdfast.transport.http_model import HttpResponse, date, event

from .http_stage import HttpClient, HttpStage, headers_of

HELLO = "\n\nhello\n"


@pytest.fixture
def stage(no_descriptor_left: None) -> Iterator[HttpStage]:
    stage = HttpStage()
    yield stage
    stage.close()


# What is asked and answered.


def test_a_page_is_answered_with_its_length_type_and_date(stage: HttpStage) -> None:
    answer = stage.connect().get("/hello?max_age=5&x=&max_age=6%20s").until_answers()
    assert answer.startswith("HTTP/1.1 200 OK\n")
    assert answer.endswith(HELLO)
    headers = headers_of(answer)
    assert headers["content-length"] == "6"
    assert headers["content-type"] == "text/plain; charset=utf-8"
    assert headers["date"].endswith(" GMT")
    assert len(headers["date"]) == len(date())
    (request,) = stage.requests
    assert request.query == {"max_age": "6 s", "x": ""}
    assert request.headers["host"] == "here"
    assert request.address == "127.0.0.1"


@pytest.mark.parametrize("host", ["::1", "::"])
def test_it_listens_on_ipv6(host: str) -> None:
    stage = HttpStage(host)
    try:
        stage.address = ("::1", stage.address[1])
        stage.assert_undisturbed()
        if host == "::":
            stage.address = ("127.0.0.1", stage.address[1])
            stage.assert_undisturbed()
    finally:
        stage.close()


def test_a_port_that_is_taken_is_an_error(stage: HttpStage) -> None:
    with pytest.raises(OSError, match="in use"):
        stage.server.listen(port=stage.address[1])


def test_a_connection_ends_with_its_answer_whatever_else_was_asked(stage: HttpStage) -> None:
    client = stage.connect().get("/later").get("/hello")
    stage.until(lambda: stage.replies)
    assert client.received == b""
    stage.replies[0](HttpResponse(b"first"))
    answer = client.until_ended()
    assert answer.endswith("\n\nfirst")
    assert headers_of(answer)["connection"] == "close"
    assert stage.requests == []
    stage.until(lambda: stage.server.connections == 0)


def test_a_head_has_the_headers_of_the_page_and_no_body(stage: HttpStage) -> None:
    client = stage.connect().send("HEAD /hello HTTP/1.1\nHost: here\n\n")
    stage.until(lambda: client.text.endswith("\n\n"))
    assert headers_of(client.text)["content-length"] == "6"
    assert client.until_ended().count("hello") == 0


def test_a_body_is_taken_whole_however_it_comes(stage: HttpStage) -> None:
    head = "POST /echo HTTP/1.1\nHost: here\nContent-Length: 5\n\n"
    assert stage.connect().send(f"{head}plain").until_answers().endswith("\n\nplain")
    client = stage.connect().send(f"{head}pl")
    stage.until(lambda: stage.server.buffers.unfinished_bytes)
    assert client.send("ain").until_answers().endswith("\n\nplain")


def test_who_asks_whether_to_go_on_is_told_to(stage: HttpStage) -> None:
    head = "POST /echo HTTP/1.1\nHost: here\nExpect: 100-continue\nContent-Length: 2\n\n"
    client = stage.connect().send(head)
    stage.until(lambda: client.text.startswith("HTTP/1.1 100 "))
    assert client.send("hi").until_answers(2).endswith("\n\nhi")


def test_old_and_closing_clients_are_answered_and_hung_up_on(stage: HttpStage) -> None:
    old = stage.connect().send("GET /hello HTTP/1.0\n\n")
    closing = stage.connect().get("/hello", "Connection: keep-alive\n")
    assert old.until_ended().endswith(HELLO)
    assert closing.until_ended().endswith(HELLO)


def test_who_has_hung_up_halfway_still_gets_the_answer(stage: HttpStage) -> None:
    client = stage.connect().get("/later")
    client.socket.shutdown(socket.SHUT_WR)
    stage.until(lambda: stage.replies)
    stage.replies[0](HttpResponse(b"late"))
    assert client.until_ended().endswith("\n\nlate")
    stage.until(lambda: stage.server.connections == 0)


def test_a_folder_answers_for_all_below_it_and_the_longest_wins(stage: HttpStage) -> None:
    assert stage.connect().get("/files/").until_answers().endswith("\n\n/files/")
    assert stage.connect().get("/files/inner/x").until_answers().endswith("\n\ninner")
    assert " 404 " in stage.connect().get("/files").until_answers()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /nowhere HTTP/1.1\nHost: here\n\n", 404),
        ("POST /hello HTTP/1.1\nHost: here\nContent-Length: 0\n\n", 405),
        ("DELETE /hello HTTP/1.1\nHost: here\n\n", 405),
        ("CONNECT other:80 HTTP/1.1\nHost: here\n\n", 400),
        ("GET * HTTP/1.1\nHost: here\n\n", 400),
        ("GET /hello?" + "a&" * 500 + " HTTP/1.1\nHost: here\n\n", 400),
        ("GET /hello HTTP/1.1\n\n", 400),
        ("GET /hello HTTP/1.1\nHost: a\nHost: b\n\n", 400),
        ("hello\n\n", 400),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),
        ("POST /echo HTTP/1.1\nHost: here\nContent-Length: -5\n\n", 400),
        ("POST /echo HTTP/1.1\nHost: h\nContent-Length: 1\nContent-Length: 2\n\n", 400),
        ("POST /echo HTTP/1.1\nHost: here\nTransfer-Encoding: gzip\n\n", 501),
        ("POST /echo HTTP/1.1\nHost: here\nContent-Length: 101\n\n", 413),
        ("POST /nowhere HTTP/1.1\nHost: here\nContent-Length: 101\n\n", 404),
        ("GET /hello HTTP/1.1\nHost: here\nContent-Length: 9\n\n", 413),
        ("POST /echo HTTP/1.1\nHost: h\nTransfer-Encoding: chunked\n\n2\nhi\n0\n\n", 411),
        ("GET /" + "a" * 100_000 + " HTTP/1.1\nHost: here\n\n", 431),
        ("GET /hello HTTP/1.1\nHost: here\nX: " + "a" * 100_000, 431),
    ],
)
def test_what_cannot_be_answered_is_told_why(
    stage: HttpStage, request_text: str, status: int
) -> None:
    answer = stage.connect().send(request_text).until_answers()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert len(answer.partition("\n\n")[2]) > len("\n")
    stage.assert_undisturbed()


def test_who_is_told_that_its_body_is_too_long_can_read_it_while_it_sends(stage: HttpStage) -> None:
    """To close at once would reset the connection, and with it what was not read yet."""
    client = stage.connect()
    client.send("POST /echo HTTP/1.1\nHost: here\nContent-Length: 500000\n\n" + "x" * 100_000)
    assert " 413 " in client.until_answers()
    client.send("x" * 10_000)
    assert headers_of(client.until_ended())["connection"] == "close"


def test_a_handler_that_fails_is_answered_for_and_told(stage: HttpStage) -> None:
    client = stage.connect().get("/broken")
    assert client.until_answers().startswith("HTTP/1.1 500 ")
    assert stage.problems == ["/broken cannot be shown: KeyError: 'planted'"]
    stage.assert_undisturbed()


def test_an_answer_may_be_used_once_and_for_one_who_has_gone(stage: HttpStage) -> None:
    client = stage.connect().get("/later")
    stage.until(lambda: stage.replies)
    stage.replies[0](HttpResponse(b"one"))
    stage.replies[0](HttpResponse(b"two"))
    assert client.until_answers().endswith("\n\none")
    gone = stage.connect().get("/later")
    stage.until(lambda: len(stage.replies) == 2)
    gone.close()
    client.close()
    stage.until(lambda: stage.server.connections <= 1)
    stage.replies[1](HttpResponse(b"nobody reads it"))
    assert stage.replies[1].stream(HttpResponse(), lambda: None, lambda: None) is None
    stage.assert_undisturbed()


# Streams.


def test_a_stream_arrives_piece_by_piece_and_ends_when_it_is_closed(stage: HttpStage) -> None:
    client = stage.connect().get("/live")
    stream = stage.stream()
    stream.send(event("one\ntwo\rdata: forged", name="round", number="7"))
    piece = "id: 7\nevent: round\ndata: one\ndata: two\ndata: data: forged\n\n"
    stage.until(lambda: piece in client.text)
    assert headers_of(client.text)["content-type"] == "text/event-stream"
    assert "content-length" not in headers_of(client.text)
    stream.send(event("three"))
    stage.until(lambda: "data: three\n\n" in client.text)
    stream.close()
    stream.send(b"no more")
    assert client.until_ended().endswith("0\n\n")
    assert stage.closings == 0


def test_the_end_of_a_streams_client_is_told_once(stage: HttpStage) -> None:
    client = stage.connect().get("/live")
    stream = stage.stream()
    client.close()
    stage.until(lambda: stage.closings)
    assert not stream.is_open
    assert not stream.has_room
    stream.send(b"nobody reads it")
    stream.close()
    assert stage.closings == 1


def test_a_stream_waits_for_its_client_to_read(stage: HttpStage) -> None:
    client = stage.connect().get("/live")
    stream = stage.stream()
    stage.until(lambda: client.received)
    client.read_no_more()
    sent = 0
    while stream.has_room:
        stream.send(b"#" * 32_768)
        sent += 32_768
    assert stage.rooms == 0
    client.read_again()
    stage.until(lambda: stage.rooms and stream.has_room)
    stage.until(lambda: client.received.count(b"#") == sent)
    assert stream.is_open


def test_a_stream_whose_client_never_reads_is_dropped(stage: HttpStage) -> None:
    client = stage.connect().get("/live")
    stream = stage.stream()
    client.read_no_more()
    for _ in range(32):
        stream.send(b"x" * (1 << 20))
    assert stage.closings == 0, "sending never calls back"
    stage.until(lambda: stage.closings)
    stage.until(lambda: stage.server.connections == 0)


def test_who_speaks_on_a_stream_is_dropped(stage: HttpStage) -> None:
    client = stage.connect().get("/live")
    stage.stream()
    client.get("/hello")
    stage.until(lambda: stage.closings)


def has_streams(stage: HttpStage, number: int) -> bool:
    return len(stage.streams) == number


def test_streams_leave_room_for_pages(stage: HttpStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.server, "_limit", 8)
    for number in range(4):
        stage.connect().get("/live")
        stage.until(partial(has_streams, stage, number + 1))
    assert all(stage.streams)
    assert " 503 " in stage.connect().get("/live").until_answers()
    stage.clients[0].close()
    stage.until(lambda: stage.closings)
    assert stage.connect().get("/live").until_answers().startswith("HTTP/1.1 200 ")


def test_a_head_of_a_stream_is_only_its_head(stage: HttpStage) -> None:
    client = stage.connect().send("HEAD /live HTTP/1.1\nHost: here\n\n")
    stage.until(lambda: client.text.endswith("\n\n"))
    assert stage.streams == [None]
    client.until_ended()


def test_an_answer_that_http_does_not_allow_ends_its_client_alone(stage: HttpStage) -> None:
    client = stage.connect().get("/later")
    stage.until(lambda: stage.replies)
    stage.replies[0](HttpResponse(b"", headers=(("X", "two\nlines"),)))
    client.until_ended()
    assert len(stage.problems) == 1
    stage.assert_undisturbed()


# Slow and hostile ones.


def test_a_request_that_drips_in_is_given_up(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "FRAME_TIMEOUT_S", 0.2)
    client = stage.connect()

    def drip() -> bool:
        if not client.received:
            client.send("G")
        return client.is_ended

    stage.until(drip)
    assert client.text.startswith("HTTP/1.1 408 ")
    body = stage.connect().send("POST /echo HTTP/1.1\nHost: h\nContent-Length: 9\n\nhalf")
    assert body.until_ended().startswith("HTTP/1.1 408 ")


def test_who_says_nothing_is_let_go(stage: HttpStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.2)
    client = stage.connect()
    assert client.until_ended() == ""
    asked = stage.connect().get("/hello")
    assert asked.until_ended().endswith(HELLO)


def test_an_answer_that_never_comes_is_given_up(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ANSWER_S", 0.2)
    client = stage.connect().get("/later")
    assert client.until_ended().startswith("HTTP/1.1 503 ")
    stage.replies[0](HttpResponse(b"too late"))
    assert "too late" not in client.text


def test_who_does_not_read_its_answer_is_dropped(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ANSWER_S", 0.2)
    client = stage.connect()
    client.read_no_more()
    client.get("/large")
    stage.until(lambda: stage.server.buffers.unread_bytes)
    stage.until(lambda: stage.server.connections == 0)
    assert stage.server.buffers.unread_bytes == 0


def test_answers_that_nobody_reads_have_a_bound_together(stage: HttpStage) -> None:
    clients = [stage.connect() for _ in range(6)]
    for client in clients:
        client.read_no_more()
        client.get("/large")
    stage.until(lambda: stage.server.connections < len(clients))
    assert stage.server.buffers.unread_bytes <= buffers.UNREAD_BYTES
    stage.assert_undisturbed()


def test_who_does_not_hang_up_after_the_last_word_is_cut_off(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "LINGER_S", 0.2)
    client = stage.connect().send("nonsense\n\n")
    client.until_answers()
    stage.until(lambda: stage.server.connections == 0)


def test_when_all_places_are_taken_the_idle_make_room(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.server, "_limit", 8)
    monkeypatch.setattr(listener, "PAUSE_S", 0.01)
    idle = [stage.connect(f"127.0.0.{number + 1}") for number in range(8)]
    stage.assert_undisturbed()
    stage.until(lambda: any(client.is_ended for client in idle))


def test_idle_ones_of_the_same_address_make_room(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.server, "_limit", 8)
    idle = [stage.connect() for _ in range(7)]
    stage.until(lambda: stage.server.connections == 7)
    page = stage.connect()
    assert page.get("/hello").until_answers().endswith(HELLO)
    stage.until(lambda: idle[0].is_ended)
    assert not any(client.is_ended for client in idle[1:])


def test_halves_of_requests_keep_nobody_out(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.server, "_limit", 8)
    halves = [stage.connect("127.0.0.3").send("GET /hel") for _ in range(7)]
    stage.until(lambda: len(stage.server.buffers._unfinished) == 7)
    assert stage.connect("127.0.0.3").get("/hello").until_answers().endswith(HELLO)
    stage.until(lambda: sum(client.is_ended for client in halves) == 1)


def test_one_address_leaves_room_for_others(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage.server, "_limit", 8)
    greedy = [stage.connect().get("/later") for _ in range(9)]
    stage.until(lambda: sum(client.is_ended for client in greedy) == 2)
    assert stage.connect("127.0.0.9").get("/hello").until_answers().endswith(HELLO)


def test_requests_that_take_long_come_one_in_a_turn_of_the_loop(stage: HttpStage) -> None:
    """What several clients have sent at once is answered in parts; timers come in between."""
    for _ in range(5):
        stage.connect().get("/slow")
    turns: list[int] = []

    def one_turn() -> bool:
        turns.append(len(stage.requests))
        return turns[-1] == 5

    stage.until(one_turn)
    assert {later - before for before, later in itertools.pairwise(turns)} <= {0, 1}


def test_a_probe_comes_first_also_from_an_address_that_floods(stage: HttpStage) -> None:
    for _ in range(12):
        stage.connect().get("/slow")
    stage.until(lambda: stage.requests)
    probe = stage.connect().get("/livez?verbose")
    asked_before = len(stage.requests)
    stage.until(lambda: any(request.path == "/livez" for request in stage.requests))
    assert len(stage.requests) - asked_before <= 6
    assert probe.until_answers().endswith("alive\n")


def test_a_flood_of_probes_leaves_others_their_turns(
    stage: HttpStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "TURN_S", 0.0)
    for _ in range(40):
        stage.connect().get("/livez")
    stage.connect().get("/hello")
    stage.until(lambda: any(request.path == "/hello" for request in stage.requests))
    assert len(stage.requests) < 40


def test_nothing_is_left_when_it_closes_whatever_clients_do(stage: HttpStage) -> None:
    stage.connect()
    stage.connect().send("GET /hel")
    stage.connect().get("/later")
    stage.connect().get("/live")
    unread: HttpClient = stage.connect()
    unread.read_no_more()
    unread.get("/large")
    stage.until(lambda: stage.streams and stage.replies and stage.server.buffers.unread_bytes)
    stage.server.close()
    assert stage.server.connections == 0
    assert stage.closings == 1
    stage.until(lambda: all(client.is_ended for client in stage.clients[:4]))
    with pytest.raises(ConnectionRefusedError):
        stage.connect()


def test_a_client_that_others_wrote_is_content(stage: HttpStage) -> None:
    """Python's own, in a thread, which would keep its connection."""
    found: list[tuple[int, bytes]] = []

    def ask() -> None:
        connection = http.client.HTTPConnection(*stage.address, timeout=30)
        for method, path, body in (("GET", "/hello", None), ("POST", "/echo", b"hi")):
            connection.request(method, path, body)
            response = connection.getresponse()
            found.append((response.status, response.read()))
        connection.close()

    thread = threading.Thread(target=ask)
    thread.start()
    stage.until(lambda: not thread.is_alive())
    thread.join()
    assert found == [(200, b"hello\n"), (200, b"hi")]
