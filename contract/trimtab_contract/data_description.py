"""What a run trains on, in one value: enough to tell a changed data set, and to find the samples of any window."""

import msgspec

from trimtab_contract.data_position import DataOrder, Order, SampleId
from trimtab_contract.errors import UNREADABLE, ContractError, InvalidPosition


class SourceDescription(msgspec.Struct, frozen=True, kw_only=True):
    """One source: `samples` of the run's length, and the identity of its files.

    `size` is the sum of the files' bytes; `sha256` is over their names without folders, their sizes, heads and tails.
    """

    name: str
    kind: str
    weight: float
    samples: int
    size: int
    sha256: str


class DataDescription(msgspec.Struct, frozen=True, kw_only=True):
    """The data of a run: what gives a position its meaning.

    `separator` is the token behind which another document begins for the loss, and `attention_separator` for attention;
    None where documents are not told apart.
    """

    order: Order
    seed: int
    global_batch: int
    sequence: int
    sources: tuple[SourceDescription, ...]
    separator: int | None = None
    attention_separator: int | None = None

    def data_order(self) -> DataOrder:
        """Which sample lies at every position; raises InvalidPosition."""
        return DataOrder.of(
            [source.samples for source in self.sources],
            global_batch=self.global_batch,
            order=self.order,
            seed=self.seed,
            weights=[source.weight for source in self.sources],
        )

    def named(self, sample: SampleId) -> tuple[str, int]:
        """A sample as people look for it: the name of its source, and its index there."""
        return self.sources[sample.source].name, sample.sample

    def changes_since(self, saved: "DataDescription") -> tuple[str, ...]:
        """One sentence for everything that is otherwise than it was `saved`; the sources' names may differ."""
        fields = {
            "data.order": "order",
            "data.seed": "seed",
            "globalBatch": "global_batch",
            "model.sequence": "sequence",
        }
        pairs = [(field, getattr(saved, name), getattr(self, name)) for field, name in fields.items()]
        pairs.append(("data.packing", saved.separator, self.separator))
        pairs.append(("data.packing.attention", saved.attention_separator, self.attention_separator))
        if len(self.sources) != len(saved.sources):
            pairs.append(("data.sources", len(saved.sources), len(self.sources)))
        else:
            for number, (then, now) in enumerate(zip(saved.sources, self.sources, strict=True)):
                place = f"data.sources[{number}]" if len(self.sources) > 1 else "data"
                names = ("kind", "weight", "samples", "size", "sha256")
                pairs += [(f"{place}: {name} of {now.name}", getattr(then, name), getattr(now, name)) for name in names]
        return tuple(f"{field}: was {then}, is {now}" for field, then, now in pairs if then != now)


def encode_data(description: DataDescription) -> bytes:
    """JSON with sorted keys."""
    return msgspec.json.encode(description, order="sorted")


def decode_data(body: bytes) -> DataDescription:
    """Read a description whose positions can be computed; raises ContractError."""
    try:
        description = msgspec.json.decode(body, type=DataDescription)
        description.data_order()
    except UNREADABLE as error:
        message = f"data description cannot be decoded: {error}"
        raise ContractError(message) from error
    except InvalidPosition as error:
        message = f"data description: {error}"
        raise ContractError(message) from error
    return description
