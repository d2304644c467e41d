"""Messages out, answers in."""

import numpy as np
from flwr.common import Code, FitRes, Parameters, Status

from fedsyn_flwr.messages.instruction import Instruction
from fedsyn_flwr.messages.payload import Groups, from_parameters, nbytes
from fedsyn_flwr.messages.schema import like
from fedsyn_flwr.server.client_versions import SAVED, ClientVersions
from fedsyn_flwr.server.codec import MessageCodec
from fedsyn_flwr.server.requests import Reply
from fedsyn_flwr.server.round_record import RoundRecord

MODEL: Groups = {"model": {"w": np.arange(3, dtype=np.float32)}}
POOL = {"images": np.ones((2, 1), np.float32)}


def codec() -> MessageCodec:
    versions = ClientVersions()
    versions.take(1, {SAVED: True})
    versions.close(2)
    return MessageCodec("a-run", "layout", versions)


def reply(parameters: Parameters, partition: int = 1) -> Reply:
    result = FitRes(Status(Code.OK, ""), parameters, 5, {"flops/training": 8.0, "train-loss": 1.0})
    return Reply(partition, result, "", 100, nbytes(parameters))


def test_each_client_gets_its_own_words_and_shares_equal_bytes() -> None:
    c = codec()
    plain = c.encode(MODEL)
    extra = {0: {}, 1: {"pool": POOL}, 2: {"pool": POOL}}
    messages = c.messages([2, 1, 0], "train", 3, 2, (MODEL, plain), extra.__getitem__)
    assert list(messages) == [0, 1, 2]
    assert messages[0].parameters is plain
    assert messages[1].parameters is messages[2].parameters
    assert from_parameters(messages[1].parameters, "layout").keys() == {"model", "pool"}
    said = Instruction.read(messages[1].config)
    assert said == Instruction("a-run", 3, "train", 0, 2, partition=1, last=2, last_settled=0)


def test_a_settled_round_is_never_the_one_that_is_asked_for() -> None:
    c = codec()
    c.versions.settle(7)
    plain = c.encode(MODEL)
    message = c.messages([0], "train", 7, 0, (MODEL, plain), lambda _: {})[0]
    assert Instruction.read(message.config).settled == 6


def test_a_sound_answer_is_opened_and_entered() -> None:
    c, record = codec(), RoundRecord()
    sent = c.encode(MODEL)
    update = c.open(reply(sent), like(MODEL), record)
    assert update is not None
    assert update.groups["model"]["w"].tolist() == [0, 1, 2]
    assert (update.partition, update.examples) == (1, 5)
    assert record.metrics["bytes/down"] == 100
    assert record.metrics["bytes/up"] == nbytes(sent)
    assert record.costs.means() == {"flops/training": 8.0}


def test_what_is_missing_unreadable_or_unasked_for_is_entered_with_its_reason() -> None:
    c, record = codec(), RoundRecord()
    more = c.encode({**MODEL, "pool": POOL})
    replies = [
        Reply(0, None, "no answer within round-timeout", 100, 0),
        reply(Parameters([b"PK\x03\x04"], "numpy.ndarray"), 1),
        reply(MessageCodec("a-run", "another", c.versions).encode(MODEL), 2),
        reply(more, 3),
    ]
    assert [c.open(r, like(MODEL), record) for r in replies] == [None] * 4
    assert record.metrics["clients/failed"] == 4
    assert record.metrics["clients/rejected"] == 3
    words = ("no answer within", "payload", "another received, layout expected", "nobody asked for")
    for reason, word in zip(record.reasons, words, strict=True):
        assert word in reason
    assert record.costs.means() == {}
