"""Everything the ranks of a world say to each other; a failure of any exchange is PeerLost."""

import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage] documented
from torch.distributed.rendezvous import rendezvous  # pyright: ignore[reportUnknownVariableType]

from trimtab_trainer.errors import PeerLost
from trimtab_trainer.tensors import integers

JOIN_SECONDS = 300.0
"""How long the first rank waits for the last one to start, however short the time-out of an exchange is."""


class GroupPeers:
    """The ranks of a process group of PyTorch, as an optimizer sees those that it shares its work with.

    A failure of any exchange is PeerLost, within the time-out of the group.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        """`group` is the default group where it is left out; every rank of it shares the work."""
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.size: int = dist.get_world_size(group)

    def sum(self, tensor: Tensor) -> None:
        """Sum `tensor` over all ranks, in place."""
        with _translated("summing over the ranks"):
            dist.all_reduce(tensor, group=self._group)

    def max(self, tensor: Tensor) -> None:
        """Take the maximum of `tensor` over all ranks, in place; a NaN of any rank is infinity then.

        A maximum over ranks may lose what is not a number.
        """
        tensor.nan_to_num_(nan=math.inf, posinf=math.inf, neginf=-math.inf)
        with _translated("taking the maximum over the ranks"):
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self._group)

    def trade_later(
        self, outgoing: Tensor, sent: Sequence[int], incoming: Tensor, received: Sequence[int]
    ) -> Callable[[], None]:
        """Begin to send the i-th stretch of `outgoing` to rank i, and to fill that of `incoming` from it.

        `sent` and `received` are the lengths of the stretches; call the result to wait.
        """
        act = "trading parts with the ranks"
        with _translated(act):
            work = dist.all_to_all_single(
                incoming, outgoing, list(received), list(sent), group=self._group, async_op=True
            )
        return _waiting(act, [work])

    def share_later(self, parts: Sequence[Tensor]) -> Callable[[], None]:
        """Begin to fill the flat part of every rank, in rank order, from that rank; call the result to wait.

        This rank's own part is there already. A part for each broadcast: gloo gathers by copying all of them besides.
        """
        act = "sharing updates between the ranks"
        with _translated(act):
            works = [
                dist.broadcast(part, group=self._group, group_src=rank, async_op=True)
                for rank, part in enumerate(parts)
                if len(part)
            ]
        return _waiting(act, works)


class World:
    """This rank's place among the others, and three channels that never wait for each other.

    Gradients travel on the default group, decisions of a step on `control`, the pulse of a held world on `pulse`.
    """

    def __init__(self, timeout_seconds: float, backend: str = "gloo") -> None:
        """Join the world that torchrun described; raises PeerLost.

        `backend` is that of the default group; decisions and pulse are exchanged by gloo in any case.
        """
        timeout = timedelta(seconds=timeout_seconds)
        with _translated("joining the world"):
            join = timedelta(seconds=max(timeout_seconds, JOIN_SECONDS))
            store, rank, size = next(rendezvous("env://", timeout=join))
            # The groups wait for each other only as long as for an exchange: nobody makes them before all are here.
            store.set(f"joined/{rank}", "")
            store.wait([f"joined/{other}" for other in range(size)], join)
            dist.init_process_group(
                backend, store=PrefixStore("world", store), rank=rank, world_size=size, timeout=timeout
            )
            self._control = _group(timeout)
            self._pulse = _group(timeout)
        self._peers = GroupPeers()
        self.store = PrefixStore("background", store)
        """For background threads, which must not take part in collectives."""

    @property
    def rank(self) -> int:
        """This rank's number, from 0."""
        return self._peers.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._peers.size

    def sum(self, tensor: Tensor) -> None:
        """See `GroupPeers.sum`."""
        self._peers.sum(tensor)

    def max(self, tensor: Tensor) -> None:
        """See `GroupPeers.max`."""
        self._peers.max(tensor)

    def trade_later(
        self, outgoing: Tensor, sent: Sequence[int], incoming: Tensor, received: Sequence[int]
    ) -> Callable[[], None]:
        """See `GroupPeers.trade_later`."""
        return self._peers.trade_later(outgoing, sent, incoming, received)

    def share_later(self, parts: Sequence[Tensor]) -> Callable[[], None]:
        """See `GroupPeers.share_later`."""
        return self._peers.share_later(parts)

    def agree(self, values: Sequence[int]) -> list[int]:
        """The maximum of each number over all ranks: the decisions of one step."""
        return self._largest(values, self._control)

    def pulse(self, values: Sequence[int]) -> list[int]:
        """As `agree`, for a held world."""
        return self._largest(values, self._pulse)

    def broadcast(self, body: bytes) -> bytes:
        """The bytes of rank 0."""
        length = self.agree([len(body) if self.rank == 0 else 0])[0]
        buffer = torch.zeros(length, dtype=torch.uint8)
        if self.rank == 0:
            buffer.copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
        with _translated("broadcasting from rank 0"):
            dist.broadcast(buffer, src=0, group=self._control)
        return bytes(buffer.numpy())

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape, in rank order."""
        gathered = [torch.empty_like(tensor) for _ in range(self.size)]
        with _translated("gathering from the ranks"):
            dist.all_gather(gathered, tensor, group=self._control)
        return gathered

    def gather_text(self, text: str) -> list[str]:
        """The texts of all ranks, in rank order."""
        body = text.encode()
        length = self.agree([len(body)])[0]
        padded = torch.zeros(max(length, 1), dtype=torch.uint8)
        padded[: len(body)] = torch.tensor(list(body), dtype=torch.uint8)
        return [bytes(part.numpy()).rstrip(b"\0").decode() for part in self.gather(padded)]

    def _largest(self, values: Sequence[int], group: dist.ProcessGroup) -> list[int]:
        packed = torch.tensor(list(values), dtype=torch.int64)
        with _translated("agreeing with the ranks"):
            dist.all_reduce(packed, op=dist.ReduceOp.MAX, group=group)
        return integers(packed)


def _waiting(act: str, works: Sequence[dist.Work | None]) -> Callable[[], None]:
    """What waits for exchanges under way."""

    def wait() -> None:
        with _translated(act):
            for work in works:
                assert work is not None, "every rank is a member"
                work.wait()

    return wait


def _group(timeout: timedelta) -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=timeout)
    assert isinstance(group, dist.ProcessGroup), "every rank is a member"
    return group


@contextmanager
def exchanging() -> Generator[None]:
    """Around computations that exchange by themselves: an exchange that fails is PeerLost, other errors pass."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise PeerLost(f"an exchange of parameters or gradients failed: {str(error).splitlines()[0]}") from error
        raise


@contextmanager
def _translated(act: str) -> Generator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        # This rank's own: memory that it lacks, or what an operator did before, told where the device is next asked.
        raise
    except (RuntimeError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise PeerLost(f"{act} failed: {first_line}") from error
