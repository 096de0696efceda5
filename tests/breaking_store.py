"""A real object store, one of whose requests breaks off, and that remembers what was read of it."""

from object_store_fixture import ADMIN, ObjectStoreServer
from trimtab_trainer.adapters.s3 import Destination, ObjectStore
from trimtab_trainer.checkpointing.reading import Place
from trimtab_trainer.errors import StoreUnavailable


class BreakingStore(ObjectStore):
    """The next request breaks off after `breaks_after` bytes, unless that is None."""

    def __init__(self, server: ObjectStoreServer, bucket: str) -> None:
        super().__init__(bucket, endpoint=server.endpoint, access_key=ADMIN.access_key, secret_key=ADMIN.secret_key)
        self.read: list[Place] = []
        self.breaks_after: int | None = None

    def fill(self, key: str, offset: int, length: int, into: Destination) -> int:
        """See `ObjectStore.fill`."""
        self.read.append(Place(key.rpartition("/")[2], offset, length))
        if self.breaks_after is None:
            return super().fill(key, offset, length, into)
        arrives, self.breaks_after = self.breaks_after, None
        super().fill(key, offset, arrives, into)
        raise StoreUnavailable("the connection broke")
