"""The state of torch's random number generators of one rank, as JSON: per-rank objects are never unpickled."""

import msgspec
import torch


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to one rank alone; bytes travel as base64."""

    torch_cpu: bytes
    torch_cuda: bytes | None = None


def rank_state() -> bytes:
    """The generators' state now."""
    cuda = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_available() else None
    return msgspec.json.encode(RankState(torch_cpu=torch.get_rng_state().numpy().tobytes(), torch_cuda=cuda))


def restore_rank_state(body: bytes) -> None:
    """Set the generators; raises msgspec.DecodeError or msgspec.ValidationError."""
    state = msgspec.json.decode(body, type=RankState)
    torch.set_rng_state(torch.frombuffer(bytearray(state.torch_cpu), dtype=torch.uint8))
    if state.torch_cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state.torch_cuda), dtype=torch.uint8))
