"""Directives and acks as JSON: the same value is the same bytes, and only a new instruction is one."""

import msgspec
import pytest
from trimtab_contract.directives import (
    Ack,
    AckState,
    Action,
    CheckpointReference,
    Diagnose,
    Directive,
    LearningRateOverride,
    OnNonFinite,
    Reason,
    ReplicaReport,
    TerminationMessage,
    decode,
    encode,
)
from trimtab_contract.errors import MalformedDirective

TARGET = CheckpointReference(key="run/checkpoints/a/manifest.json", sha256="ab", step=170)
DIRECTIVE = Directive(
    epoch=3,
    seq=17,
    world=1,
    attempt=2,
    action=Action.HOLD,
    restore=TARGET,
    skip=((179, 187),),
    lr=LearningRateOverride(scale=0.5, until_step=300),
    diagnose=Diagnose(windows=(180, 214), control=(170, 171)),
    on_nonfinite=OnNonFinite.HOLD,
    incident="demo-a1-s181",
    issued_at=12.5,
)
ACK = Ack(
    state=AckState.HOLDING,
    epoch=3,
    seq=17,
    world=1,
    attempt=2,
    ranks=2,
    hosts=("a", "b"),
    step=190,
    progress=7,
    time=3.5,
    replicas=ReplicaReport(agree=False, differing=("rank 1: head",)),
    recent=(TARGET,),
)
MESSAGE = TerminationMessage(reason=Reason.TERMINATED, world=1, attempt=2, step=190, saved=TARGET)


@pytest.mark.parametrize("message", [DIRECTIVE, ACK, MESSAGE])
def test_a_message_survives_the_wire_in_one_canonical_form(message: Directive | Ack | TerminationMessage) -> None:
    wire = encode(message)
    assert decode(type(message), wire) == message
    assert encode(decode(type(message), wire)) == wire
    names = list(msgspec.json.decode(wire))
    assert names == sorted(names)
    assert b"\n" not in wire


@pytest.mark.parametrize("wire", [b"", b"{", b"[]", b'{"epoch": 1}', encode(DIRECTIVE)[:-5], b"\xff", b"null"])
@pytest.mark.parametrize("kind", [Directive, Ack, TerminationMessage])
def test_what_cannot_be_read_is_refused_with_its_kind(
    kind: type[Directive] | type[Ack] | type[TerminationMessage], wire: bytes
) -> None:
    with pytest.raises(MalformedDirective, match=f"^{kind.__name__} cannot be decoded"):
        decode(kind, wire)


@pytest.mark.parametrize("wire", [b'{"a":' * 5000, '{"a":' * 5000, "\ud800"])
@pytest.mark.parametrize("kind", [Directive, Ack, TerminationMessage])
def test_what_only_means_to_break_the_reader_is_refused_likewise(
    kind: type[Directive] | type[Ack] | type[TerminationMessage], wire: bytes | str
) -> None:
    with pytest.raises(MalformedDirective, match=f"^{kind.__name__} cannot be decoded"):
        decode(kind, wire)


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(MalformedDirective, match="action"):
        decode(Directive, encode(DIRECTIVE).replace(b'"Hold"', b'"Dance"'))


def test_a_directive_under_another_order_or_time_re_affirms() -> None:
    again = msgspec.structs.replace(DIRECTIVE, epoch=4, seq=40, issued_at=99.0)
    assert again.reaffirms(DIRECTIVE)
    assert DIRECTIVE.reaffirms(again)
    assert again.order == (4, 40)


@pytest.mark.parametrize(
    "change",
    [
        {"world": 2},
        {"attempt": 3},
        {"action": Action.RUN},
        {"restore": None},
        {"skip": ()},
        {"lr": None},
        {"diagnose": None},
        {"on_nonfinite": OnNonFinite.CONTINUE},
        {"release": 190},
        {"incident": None},
    ],
)
def test_any_other_difference_is_a_new_instruction(change: dict[str, object]) -> None:
    changed = msgspec.structs.replace(DIRECTIVE, epoch=4, **change)
    assert not changed.reaffirms(DIRECTIVE)
    assert encode(changed) != encode(msgspec.structs.replace(DIRECTIVE, epoch=4))


def test_the_higher_epoch_wins_over_any_sequence_number() -> None:
    old = msgspec.structs.replace(DIRECTIVE, epoch=3, seq=1000)
    new = msgspec.structs.replace(DIRECTIVE, epoch=4, seq=1)
    assert new.order > old.order
