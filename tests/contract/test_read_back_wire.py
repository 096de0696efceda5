"""Order and report of a verification Job on the wire: exact, and never too long for a termination message."""

import pytest
from trimtab_contract.directives import CheckpointReference
from trimtab_contract.errors import ContractError
from trimtab_contract.read_back import (
    MOST_ORDERED,
    ReadBack,
    ReadBackAnswer,
    ReadBackReport,
    decode_order,
    decode_report,
    encode_order,
    encode_report,
)

TERMINATION_MESSAGE_BYTES = 4096


def test_an_order_comes_back_as_it_was_given() -> None:
    order = tuple(
        CheckpointReference(key=f"root/{step}/manifest.json", sha256="a" * 64, step=step) for step in (20, 10)
    )
    assert decode_order(encode_order(order)) == order


def test_a_report_comes_back_as_it_was_given() -> None:
    answer = ReadBackAnswer(sha256="a" * 64, found=ReadBack.DAMAGED, detail="object x: 3 bytes read back, 4 saved")
    report = ReadBackReport(job="demo-verify-7", answers=(answer,))
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize("word", ["x", '"', "\\", "\n", "\x00", "ü", "\N{GRINNING FACE}"])
def test_the_longest_report_fits_into_a_termination_message(word: str) -> None:
    answer = ReadBackAnswer(sha256="a" * 64, found=ReadBack.UNKNOWN, detail=word * 10_000)
    line = encode_report(ReadBackReport(job="n" * 63, answers=(answer,) * MOST_ORDERED))
    assert len(line.encode()) < TERMINATION_MESSAGE_BYTES
    assert len(decode_report(line).answers) == MOST_ORDERED


@pytest.mark.parametrize("text", ["", "[", "{}", '[{"key": 1}]'])
def test_what_is_no_order_and_no_report_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="cannot be decoded"):
        decode_order(text)
    with pytest.raises(ContractError, match="cannot be decoded"):
        decode_report(text)
