"""Windows of one flat byte file: the simplest data there is."""

from pathlib import Path

from trimtab_contract.data_position import Order

from trimtab_trainer.config import DataConfig
from trimtab_trainer.data.opening import DataReader
from trimtab_trainer.data.sources import DataIdentity
from trimtab_trainer.data.windows import Windows


class ByteWindows(Windows):
    """Sample i is the T bytes from i T on and, as last target, the byte after them."""

    def __init__(
        self,
        path: Path,
        *,
        sequence: int,
        global_batch: int,
        order: Order = Order.SEQUENTIAL,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        """Open the file; raises BadConfig with every wrong field."""
        config = DataConfig(path=str(path), order=order, seed=seed)
        reader = DataReader(config, sequence=sequence, global_batch=global_batch, world_size=world_size)
        super().__init__(*reader.opened(), rank=rank, world_size=world_size)

    def identity(self) -> DataIdentity:
        """What tells the file from another, as it is now."""
        return self._sources[0].identity()
