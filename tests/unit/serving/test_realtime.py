"""OpenAI's realtime protocol, by OpenAI's own client and by hand."""

import base64
import json

import numpy as np
import pytest
import soundfile
from fixtures.serving_server import connect, counting_model, running_server
from fixtures.waiting import PATIENCE
from websockets.exceptions import ConnectionClosed

from latflow.corpus.ctm import TimedWord
from latflow.decode.options import SegmentationOptions
from latflow.serving.realtime import SettledWords
from latflow.serving.realtime_settings import Settings, turns_of
from latflow.serving.service import RefusedError

pytestmark = pytest.mark.usefixtures("counting_sessions")
CHUNK = 800  # samples that the counting session makes a word of
USUAL = SegmentationOptions()
VOICE = "input_audio_buffer.speech_"
WORDS = "conversation.item.input_audio_transcription."


@pytest.fixture(scope="module")
def server():
    with running_server(counting_model()) as running:
        yield running


def audio(*numbers):
    """Audio of a word each, in base64; 0 ends a segment."""
    data = np.repeat(np.array(numbers, "<i2"), CHUNK).tobytes()
    return base64.b64encode(data).decode()


class Client:
    """A client by hand."""

    def __init__(self, talk):
        self.talk = talk

    def send(self, kind, **values):
        self.talk.send(json.dumps({"type": kind, **values}))

    def read(self, *, to):
        """Events up to one of a kind."""
        found = []
        while not found or found[-1]["type"] != to:
            found.append(json.loads(self.talk.recv(PATIENCE)))
        return found


@pytest.fixture
def client(server):
    with connect(f"{server.url}v1/realtime?intent=transcription") as connection:
        talk = Client(connection)
        talk.hello = talk.read(to="session.created")[-1]["session"]
        yield talk


def kinds(events):
    return [event["type"] for event in events]


def test_a_turn_is_told_from_its_beginning_to_its_words(client):
    client.send("input_audio_buffer.append", audio=audio(1, 2, 0))
    found = client.read(to=f"{WORDS}completed")
    assert kinds(found) == [
        f"{VOICE}started",
        f"{VOICE}stopped",
        "input_audio_buffer.committed",
        "conversation.item.added",
        "conversation.item.done",
        f"{WORDS}delta",
        f"{WORDS}completed",
    ]
    assert len({event["event_id"] for event in found}) == len(found)
    started, stopped, committed, added, _, delta, completed = found
    assert (started["audio_start_ms"], stopped["audio_end_ms"]) == (0, 100)
    item = started["item_id"]
    assert {e["item_id"] for e in (stopped, committed, delta, completed)} == {item}
    assert added["item"]["id"] == item
    assert delta["delta"] == completed["transcript"] == "1 2"
    assert completed["usage"] == {"type": "duration", "seconds": 0.1}
    client.send("input_audio_buffer.append", audio=audio(0, 3, 0))
    later = client.read(to=f"{WORDS}completed")
    assert later[0]["audio_start_ms"] > 100
    assert later[2]["previous_item_id"] == item
    assert later[-1]["transcript"] == "3"


def deltas(events):
    return [event["delta"] for event in events if event["type"] == f"{WORDS}delta"]


def test_words_are_told_while_they_are_spoken(client):
    client.send("input_audio_buffer.append", audio=audio(1, 2, 3, 4))
    live = client.read(to=f"{WORDS}delta") + client.read(to=f"{WORDS}delta")
    assert kinds(live) == [f"{VOICE}started", f"{WORDS}delta", f"{WORDS}delta"]
    assert deltas(live) == ["1", " 2"]
    client.send("input_audio_buffer.append", audio=audio(5, 0, 6, 7, 8, 0))
    rest = client.read(to=f"{WORDS}completed")
    assert deltas(rest) == [" 3", " 4 5"]
    assert kinds(rest)[:2] == [f"{WORDS}delta", f"{VOICE}stopped"]
    assert rest[-1]["transcript"] == "1 2 3 4 5"
    assert {event["item_id"] for event in live} == {rest[-1]["item_id"]}
    assert deltas(client.read(to=f"{WORDS}completed")) == ["6", " 7 8"]


@pytest.mark.parametrize(
    ("hypotheses", "final", "told"),
    [
        (["a", "a b", "a b c"], "a b c", [[], [], ["a"], ["b", "c"]]),
        (["a b", "a x", "y x z", "y x z w"], "y x", [[], [], [], ["y", "x"], []]),
        (["a b c", "a b d", "e"], "e f g", [[], ["a"], [], ["f", "g"]]),
        ([], "a", [["a"]]),
    ],
    ids=["in order", "all told", "other words", "at once"],
)
def test_words_are_settled_when_two_hypotheses_go_on_from_them(hypotheses, final, told):
    settled = SettledWords()
    for _ in range(2):  # the second segment begins as the first
        found = [settled.accept(text) for text in hypotheses]
        words = [TimedWord("x", 0.0, 1.0, word) for word in final.split()]
        found.append([word.word for word in settled.finish(words)])
        assert found == told


def test_what_is_committed_is_a_turn_where_the_client_wants_it_so(client):
    settings = {"type": "transcription", "audio": {"input": {"turn_detection": None}}}
    client.send("session.update", session=settings)
    (updated,) = client.read(to="session.updated")
    assert updated["session"]["audio"]["input"]["turn_detection"] is None
    client.send("input_audio_buffer.append", audio=audio(1, 0, 2))
    (first,) = client.read(to=f"{WORDS}delta")  # the segment has ended
    client.send("input_audio_buffer.commit")
    found = client.read(to=f"{WORDS}completed")
    assert kinds(found)[0] == f"{WORDS}delta"
    assert deltas([first, *found]) == ["1", " 2"]
    assert {e.get("item_id", first["item_id"]) for e in found} == {first["item_id"]}
    assert found[-1]["transcript"] == "1 2"
    client.send("input_audio_buffer.append", audio=audio(5))
    client.send("input_audio_buffer.clear")
    client.read(to="input_audio_buffer.cleared")
    client.send("input_audio_buffer.append", audio=audio(6))
    client.send("input_audio_buffer.commit")
    assert client.read(to=f"{WORDS}completed")[-1]["transcript"] == "6"


def test_silence_that_is_committed_has_no_words(client):
    client.send("input_audio_buffer.append", audio=audio(0, 0))
    client.send("input_audio_buffer.commit")
    assert client.read(to=f"{WORDS}completed")[-1]["transcript"] == ""


@pytest.mark.parametrize(("old", "new"), [("ulaw", "pcmu"), ("alaw", "pcma")])
def test_telephone_s_codings_are_taken(client, server, old, new, tmp_path):
    for session in (
        {"input_audio_format": f"g711_{old}"},
        {"audio": {"input": {"format": {"type": f"audio/{new}"}}}},
    ):
        client.send("session.update", session=session)
        client.read(to="session.updated")
        # 8 is a value that both codings have, up to their steps.
        soundfile.write(
            tmp_path / "a.raw", np.full(CHUNK, 8 / 32768), 8000, old, format="RAW"
        )
        data = base64.b64encode((tmp_path / "a.raw").read_bytes()).decode()
        client.send("input_audio_buffer.append", audio=data)
        client.send("input_audio_buffer.commit")
        words = client.read(to=f"{WORDS}completed")[-1]["transcript"]
        assert words == "8"
        assert server.service.model.sessions[-1].options.sample_rate == 8000


def test_the_older_protocol_has_its_own_names(server):
    headers = {"OpenAI-Beta": "realtime=v1"}
    url = f"{server.url}v1/realtime?intent=transcription"
    with connect(url, additional_headers=headers) as connection:
        talk = Client(connection)
        hello = talk.read(to="transcription_session.created")[-1]["session"]
        assert hello["input_audio_format"] == "pcm16"
        transcription = {"model": "x", "language": "de", "keywords": ["one", "two"]}
        session = {"input_audio_transcription": transcription}
        talk.send("transcription_session.update", session=session)
        updated = talk.read(to="transcription_session.updated")[-1]["session"]
        assert updated["input_audio_transcription"] == transcription
        talk.send("input_audio_buffer.append", audio=audio(4, 0))
        assert "conversation.item.created" in kinds(talk.read(to=f"{WORDS}completed"))
        options = server.service.model.sessions[-1].options
        assert options.phrases == ("one", "two")


def test_confidences_are_told_where_they_are_asked_for(client):
    session = {
        "type": "transcription",
        "include": ["item.input_audio_transcription.logprobs"],
    }
    client.send("session.update", session=session)
    client.send("input_audio_buffer.append", audio=audio(1, 2, 3, 4, 0))
    *_, last, done = client.read(to=f"{WORDS}completed")
    assert [one["token"] for one in done["logprobs"]] == ["1", "2", "3", "4"]
    assert last["delta"] == " 3 4"
    assert last["logprobs"] == done["logprobs"][2:]
    assert done["logprobs"][1]["logprob"] == pytest.approx(np.log(0.5))


@pytest.mark.parametrize(
    ("event", "message", "param"),
    [
        ({"type": "response.create"}, "type: 'response.create' is not", "type"),
        ({"type": "input_audio_buffer.append", "audio": "?"}, "base64", "audio"),
        ({"type": "input_audio_buffer.append", "audio": 3}, "base64", "audio"),
        ({"type": "input_audio_buffer.append"}, "base64", "audio"),
        ({"type": "input_audio_buffer.append", "audio": "AAAA"}, "16 bits", "audio"),
        (
            {"type": "input_audio_buffer.append", "audio": "T2dnUwAC"},
            "not a file (Ogg)",
            "audio",
        ),
        ({"type": "input_audio_buffer.commit"}, "no audio to commit", None),
        (
            {"type": "session.update", "session": {"type": "realtime"}},
            "session.type: 'realtime' is not supported; supported: 'transcription'",
            "session.type",
        ),
        (
            {"type": "session.update", "session": []},
            "session must be an object",
            "session",
        ),
        (
            {"type": "session.update", "session": {"include": 5}},
            "session.include must be a list",
            "session.include",
        ),
    ],
)
def test_a_wrong_event_is_told_and_ends_nothing(client, event, message, param):
    client.talk.send(json.dumps({**event, "event_id": "mine"}))
    error = client.read(to="error")[-1]["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert (error["param"], error["event_id"]) == (param, "mine")
    client.send("input_audio_buffer.append", audio=audio(7, 0))
    assert client.read(to=f"{WORDS}completed")[-1]["transcript"] == "7"


@pytest.mark.parametrize("message", ["", "{", "[]", "3", b"\0\0"])
def test_what_is_no_event_is_told(client, message):
    client.talk.send(message)
    assert "JSON object" in client.read(to="error")[-1]["error"]["message"]


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"format": {"type": "audio/mp3"}}, "format.type"),
        ({"format": {"type": ["audio/pcm"]}}, "format.type"),
        ({"format": {"type": "audio/pcm", "rate": 16000}}, "format.rate"),
        ({"turn_detection": {"type": "magic"}}, "turn_detection.type"),
        ({"turn_detection": {"threshold": 7}}, "turn_detection.threshold"),
        ({"turn_detection": {"silence_duration_ms": "x"}}, "silence_duration_ms"),
        ({"turn_detection": {"silence_duration_ms": True}}, "silence_duration_ms"),
        ({"turn_detection": {"silence_duration_ms": 49}}, "silence_duration_ms"),
        ({"turn_detection": {"prefix_padding_ms": -1}}, "prefix_padding_ms"),
        ({"turn_detection": []}, "turn_detection"),
        ({"transcription": "x"}, "transcription"),
        ({"transcription": {"model": ["x"]}}, "transcription.model"),
        ({"transcription": {"language": 5}}, "transcription.language"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, param):
    with pytest.raises(RefusedError) as refused:
        Settings("m").updated({"audio": {"input": given}}, USUAL)
    assert refused.value.param.endswith(param)
    assert refused.value.param in str(refused.value)  # not by our name of it


def test_detection_is_the_client_s_where_it_sets_it():
    given = {"type": "server_vad", "silence_duration_ms": 200, "threshold": 0.6}
    settings = Settings("m").updated({"turn_detection": given}, USUAL)
    assert settings.turns.min_silence == 0.2
    assert settings.turns.padding == 0.2  # no more than the silence
    assert settings.detection == {
        **{"type": "server_vad", "threshold": 0.6},
        **{"prefix_padding_ms": 200, "silence_duration_ms": 200},
    }
    own = Settings("m").updated({"turn_detection": {"type": "semantic_vad"}}, USUAL)
    assert own.turns == USUAL


def test_turns_may_be_as_long_as_anyone_wants():
    given = {"silence_duration_ms": 10**400}
    settings = Settings("m").updated({"turn_detection": given}, USUAL)
    assert settings.turns.min_silence == 1e9
    long = {"silence_duration_ms": 9000, "prefix_padding_ms": 9000}
    _, detection = turns_of(long, USUAL)
    assert detection["prefix_padding_ms"] == 5000  # a quarter of the longest segment


def test_a_token_is_needed_and_browsers_may_name_it(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret")
    with running_server(counting_model(), token_file=str(token)) as running:
        url = f"{running.url}v1/realtime"
        with connect(url) as talk:
            client = Client(talk)
            client.send("input_audio_buffer.clear")
            error = client.read(to="error")[-1]["error"]
            assert error["code"] == "token"
            with pytest.raises(ConnectionClosed) as closed:
                talk.recv(PATIENCE)
            assert closed.value.rcvd.code == 1008
        offered = ["realtime", "openai-insecure-api-key.secret"]
        with connect(url, subprotocols=offered) as talk:
            assert talk.subprotocol == "realtime"
            client = Client(talk)
            client.send("input_audio_buffer.clear")
            client.read(to="input_audio_buffer.cleared")


def test_what_was_heard_is_told_when_the_server_ends():
    with (
        running_server(counting_model()) as running,
        connect(f"{running.url}v1/realtime") as talk,
    ):
        client = Client(talk)
        client.send("input_audio_buffer.append", audio=audio(1, 2))
        client.read(to=f"{VOICE}started")
        running.end()
        found = client.read(to="error")
        assert f"{WORDS}completed" in kinds(found)
        assert found[-1]["error"]["code"] == "draining"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # openai's, of websockets
def test_openai_s_client_transcribes(server):
    openai = pytest.importorskip("openai", reason="OpenAI's client")
    client = openai.OpenAI(api_key="x", websocket_base_url=f"{server.url}v1")
    query = {"intent": "transcription"}
    found = []
    limits = {"open_timeout": PATIENCE}
    with client.realtime.connect(
        extra_query=query, websocket_connection_options=limits
    ) as talk:
        session = {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcm", "rate": 24000},
                    "transcription": {"model": "gpt-4o-transcribe"},
                    "turn_detection": {
                        "type": "server_vad",
                        "silence_duration_ms": 400,
                    },
                }
            },
        }
        talk.session.update(session=session)
        talk.input_audio_buffer.append(audio=audio(1, 2, 4))
        for event in talk:
            found.append(event)
            if event.type.endswith("transcription.delta"):
                break
        talk.input_audio_buffer.append(audio=audio(0, 3))
        talk.input_audio_buffer.commit()
        for event in talk:
            found.append(event)
            if event.type.endswith("completed") and event.transcript == "3":
                break
    assert [type(event).__name__ for event in found[:3]] == [
        "SessionCreatedEvent",
        "SessionUpdatedEvent",
        "InputAudioBufferSpeechStartedEvent",
    ]
    assert found[1].session.audio.input.transcription.model == "gpt-4o-transcribe"
    told = [e.transcript for e in found if e.type.endswith("completed")]
    assert told == ["1 2 4", "3"]
    live = [e.delta for e in found if e.type.endswith("transcription.delta")]
    assert live == ["1", " 2 4", "3"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # openai's, of websockets
def test_openai_s_client_transcribes_by_the_older_protocol(server):
    openai = pytest.importorskip("openai", reason="OpenAI's client")
    client = openai.OpenAI(api_key="x", websocket_base_url=f"{server.url}v1")
    limits = {"open_timeout": PATIENCE}
    with client.beta.realtime.connect(
        model="gpt-4o-transcribe", websocket_connection_options=limits
    ) as talk:
        session = {"input_audio_format": "pcm16", "turn_detection": None}
        talk.transcription_session.update(session=session)
        talk.input_audio_buffer.append(audio=audio(9))
        talk.input_audio_buffer.commit()
        for event in talk:
            if event.type.endswith("completed"):
                assert event.transcript == "9"
                return
