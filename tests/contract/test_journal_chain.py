"""The journal's hash chain: whatever is done to stored records is found, and fenced records count for nothing."""

from collections.abc import Callable, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trimtab_contract.errors import MalformedJournal
from trimtab_contract.journal import (
    GENESIS,
    Actor,
    Evidence,
    JournalRecord,
    Phase,
    canonical_bytes,
    effective,
    parse_record,
    plain,
    record_hash,
    verify_chain,
)

Bodies = list[tuple[int, bytes]]


def actor(epoch: int) -> Actor:
    return Actor(service_account="sa", pod="p", pod_uid="u", image="i", epoch=epoch)


def chain(*entries: tuple[str, Phase | None, str, int]) -> Bodies:
    """Records given as (action, phase, id, epoch)."""
    bodies: Bodies = []
    previous = GENESIS
    for seq, (action, phase, name, epoch) in enumerate(entries, 1):
        record = JournalRecord(
            seq=seq,
            prev=previous,
            id=name,
            time=f"2026-01-01T00:00:{seq:02d}+00:00",
            actor=actor(epoch),
            action=action,
            phase=phase,
            after={"loss": float("nan"), "step": seq},
            evidence=(Evidence(key="k", sha256="s"),),
        )
        body = canonical_bytes(record)
        bodies.append((seq, body))
        previous = record_hash(body)
    return bodies


def good() -> Bodies:
    return chain(
        ("Takeover", None, "t1", 1),
        ("StartWorld", Phase.INTENT, "run#1", 1),
        ("StartWorld", Phase.RESULT, "run#1", 1),
        ("WorldRunning", None, "r", 1),
        ("Takeover", None, "t2", 2),
        ("Directive", Phase.INTENT, "run#2", 2),
        ("Directive", Phase.RESULT, "run#2", 2),
    )


def test_an_untouched_journal_is_intact_and_names_its_head() -> None:
    bodies = good()
    report = verify_chain(bodies)
    assert report.intact
    assert (report.records, report.head_seq, report.head_hash) == (7, 7, record_hash(bodies[-1][1]))
    assert report.ignored == ()


def test_an_empty_journal_is_intact() -> None:
    report = verify_chain([])
    assert report.intact
    assert (report.head_seq, report.head_hash) == (0, GENESIS)


def altered(bodies: Bodies, index: int) -> Bodies:
    seq, body = bodies[index]
    record = msgspec.structs.replace(parse_record(body), after={"loss": 1.0, "step": 99})
    return [*bodies[:index], (seq, canonical_bytes(record)), *bodies[index + 1 :]]


def respaced(bodies: Bodies, index: int) -> Bodies:
    seq, body = bodies[index]
    return [*bodies[:index], (seq, body.replace(b'":', b'": ')), *bodies[index + 1 :]]


def removed(bodies: Bodies, index: int) -> Bodies:
    return [*bodies[:index], *bodies[index + 1 :]]


def truncated(bodies: Bodies, index: int) -> Bodies:
    seq, body = bodies[index]
    return [*bodies[:index], (seq, body[: len(body) // 2]), *bodies[index + 1 :]]


def reordered(bodies: Bodies, index: int) -> Bodies:
    """Swap the bodies of two keys."""
    (seq, body), (after, next_body) = bodies[index], bodies[index + 1]
    return [*bodies[:index], (seq, next_body), (after, body), *bodies[index + 2 :]]


def inserted(bodies: Bodies, index: int) -> Bodies:
    """A record more, the keys after it moved up."""
    forged = chain(("Completed", None, "x", 9))[0][1]
    moved = [(seq + 1, body) for seq, body in bodies[index:]]
    return [*bodies[:index], (index + 1, forged), *moved]


@pytest.mark.parametrize("index", range(6))
@pytest.mark.parametrize("damage", [altered, respaced, removed, truncated, reordered, inserted])
def test_whatever_is_done_to_a_record_that_others_follow_is_found(
    damage: Callable[[Bodies, int], Bodies], index: int
) -> None:
    report = verify_chain(damage(good(), index))
    assert not report.intact
    # The damage is found where it was done, or in the record that follows.
    assert any(f"record {number}" in report.problems[0] for number in (index + 1, index + 2))


@given(st.integers(0, 5), st.data())
def test_any_flipped_bit_before_the_last_record_is_found(index: int, data: st.DataObject) -> None:
    bodies = good()
    seq, body = bodies[index]
    place, bit = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(0, 7))
    flipped = bytearray(body)
    flipped[place] ^= 1 << bit
    assert not verify_chain([*bodies[:index], (seq, bytes(flipped)), *bodies[index + 1 :]]).intact


def test_the_last_record_is_bound_by_the_head_that_the_report_names() -> None:
    changed = verify_chain(altered(good(), 6))
    assert changed.head_hash != verify_chain(good()).head_hash
    assert verify_chain(good()[:5]).head_seq == 5


def test_records_of_a_fenced_operator_are_reported_and_count_for_nothing() -> None:
    bodies = chain(
        ("Takeover", None, "t1", 1),
        ("Takeover", None, "t2", 2),
        ("Completed", Phase.INTENT, "run#1", 1),
        ("WorldRunning", None, "r", 2),
    )
    report = verify_chain(bodies)
    assert report.intact
    assert report.ignored == (3,)
    assert [record.seq for record in effective(parse_record(body) for _, body in bodies)] == [1, 2, 4]


@pytest.mark.parametrize(
    "entries",
    [
        (("Directive", Phase.RESULT, "run#1", 1),),
        (("Directive", Phase.INTENT, "run#1", 1), ("Directive", Phase.RESULT, "run#2", 1)),
        (("Directive", Phase.RESULT, "run#1", 1), ("Directive", Phase.INTENT, "run#1", 1)),
        # The intent of a fenced operator announces nothing.
        (("Takeover", None, "t", 2), ("Directive", Phase.INTENT, "x", 1), ("Directive", Phase.RESULT, "x", 2)),
    ],
)
def test_a_result_without_an_earlier_intent_is_found(entries: Sequence[tuple[str, Phase | None, str, int]]) -> None:
    assert any("without an earlier intent" in text for text in verify_chain(chain(*entries)).problems)


def test_non_finite_numbers_are_words() -> None:
    value = {"a": float("nan"), "b": [float("inf"), -float("inf")], 3: (1.5, None)}
    assert plain(value) == {"a": "NaN", "b": ["Infinity", "-Infinity"], "3": [1.5, None]}


def test_bytes_of_a_record_do_not_depend_on_the_order_it_was_made_in() -> None:
    record = parse_record(good()[0][1])
    turned = msgspec.structs.replace(record, after={"step": 1, "loss": "NaN"})
    assert canonical_bytes(turned) == canonical_bytes(msgspec.structs.replace(record, after={"loss": "NaN", "step": 1}))


@pytest.mark.parametrize("body", [b"", b"{}", b"null", b"\xff"])
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedJournal, match="journal record cannot be decoded"):
        parse_record(body)
