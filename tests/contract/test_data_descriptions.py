"""What a run trains on: read back as written, compared field by field, and enough to find any sample."""

import msgspec
import pytest
from trimtab_contract.data_description import DataDescription, SourceDescription, decode_data, encode_data
from trimtab_contract.data_position import DataOrder, Order, SampleId
from trimtab_contract.errors import ContractError

WEB = SourceDescription(name="web", kind="uint16", weight=0.7, samples=90, size=1000, sha256="ab")
BOOKS = SourceDescription(name="books", kind="jsonl:text", weight=0.3, samples=30, size=500, sha256="cd")
DATA = DataDescription(order=Order.SHUFFLED, seed=7, global_batch=4, sequence=8, sources=(WEB, BOOKS), separator=255)


def test_a_description_reads_back_and_has_the_order_that_the_run_had() -> None:
    assert decode_data(encode_data(DATA)) == DATA
    order = DataOrder.of([90, 30], global_batch=4, order=Order.SHUFFLED, seed=7, weights=[0.7, 0.3])
    assert DATA.data_order() == order
    assert DATA.named(SampleId(1, 29)) == ("books", 29)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": 8}, "data.seed: was 7, is 8"),
        ({"order": Order.SEQUENTIAL}, "data.order: was shuffled, is sequential"),
        ({"global_batch": 8}, "globalBatch: was 4, is 8"),
        ({"sequence": 9}, "model.sequence: was 8, is 9"),
        ({"separator": None}, "data.packing: was 255, is None"),
        ({"attention_separator": 255}, "data.packing.attention: was None, is 255"),
        ({"sources": (WEB,)}, "data.sources: was 2, is 1"),
    ],
)
def test_each_change_is_named(changes: dict[str, object], said: str) -> None:
    assert msgspec.structs.replace(DATA, **changes).changes_since(DATA) == (said,)


@pytest.mark.parametrize("field", ["kind", "weight", "samples", "size", "sha256"])
def test_each_change_of_a_source_is_named_with_the_source(field: str) -> None:
    other = msgspec.structs.replace(BOOKS, **{field: getattr(WEB, field)})
    (said,) = msgspec.structs.replace(DATA, sources=(WEB, other)).changes_since(DATA)
    assert said == f"data.sources[1]: {field} of books: was {getattr(BOOKS, field)}, is {getattr(WEB, field)}"


def test_another_name_or_folder_is_no_change() -> None:
    renamed = msgspec.structs.replace(BOOKS, name="novels")
    assert msgspec.structs.replace(DATA, sources=(WEB, renamed)).changes_since(DATA) == ()


@pytest.mark.parametrize("body", [b"[]", b"{", encode_data(msgspec.structs.replace(DATA, sources=()))])
def test_what_is_no_description_is_refused(body: bytes) -> None:
    with pytest.raises(ContractError, match="data description"):
        decode_data(body)
