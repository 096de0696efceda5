"""What a step trains on: windows of one source or several, and the log that proves which of them were read."""

from trimtab_trainer.data.batch_log import BatchLog
from trimtab_trainer.data.byte_windows import ByteWindows
from trimtab_trainer.data.object_blobs import Patience
from trimtab_trainer.data.opening import DataReader
from trimtab_trainer.data.packing import documents_of, targets_of
from trimtab_trainer.data.sources import DataIdentity
from trimtab_trainer.data.windows import Windows

__all__ = ["BatchLog", "ByteWindows", "DataIdentity", "DataReader", "Patience", "Windows", "documents_of", "targets_of"]
