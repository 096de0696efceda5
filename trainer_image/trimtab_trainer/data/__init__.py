"""What a step trains on: windows of a byte file, and the log that proves which of them were read."""

from trimtab_trainer.data.batch_log import BatchLog
from trimtab_trainer.data.byte_windows import ByteWindows, DataIdentity

__all__ = ["BatchLog", "ByteWindows", "DataIdentity"]
