"""The state of one rank's random number generators, as JSON: per-rank objects are never unpickled."""

import random

import msgspec
import numpy as np
import torch


class NumpyState(msgspec.Struct, frozen=True, kw_only=True):
    """NumPy's global generator: the words of its Mersenne twister, its place among them, and a normal number kept."""

    words: tuple[int, ...]
    position: int
    has_normal: int
    normal: float


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """What belongs to one rank alone; bytes travel as base64. Older checkpoints have PyTorch's generators only."""

    torch_cpu: bytes
    torch_cuda: bytes | None = None
    numpy: NumpyState | None = None
    python: tuple[int, tuple[int, ...], float | None] | None = None


def rank_state() -> bytes:
    """The generators' state now."""
    # To ask for it is to take memory on a device, the first one where none was chosen: not for who computes on the CPU.
    cuda = torch.cuda.get_rng_state().numpy().tobytes() if torch.cuda.is_initialized() else None
    version, words, normal = random.getstate()
    return msgspec.json.encode(
        RankState(
            torch_cpu=torch.get_rng_state().numpy().tobytes(),
            torch_cuda=cuda,
            numpy=_numpy_state(),
            python=(version, words, normal),
        )
    )


def restore_rank_state(body: bytes) -> None:
    """Set the generators; raises msgspec.DecodeError or msgspec.ValidationError."""
    state = msgspec.json.decode(body, type=RankState)
    torch.set_rng_state(torch.frombuffer(bytearray(state.torch_cpu), dtype=torch.uint8))
    if state.torch_cuda is not None and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(state.torch_cuda), dtype=torch.uint8))
    if state.numpy is not None:
        kept = state.numpy
        words = np.array(kept.words, np.uint32)
        np.random.set_state(("MT19937", words, kept.position, kept.has_normal, kept.normal))
    if state.python is not None:
        random.setstate(state.python)


def _numpy_state() -> NumpyState | None:
    """None where a program has put another kind of generator in the global one's place."""
    found = np.random.get_state(legacy=False)
    if found["bit_generator"] != "MT19937":
        return None
    words, position = found["state"]["key"].tolist(), int(found["state"]["pos"])
    return NumpyState(
        words=tuple(words), position=position, has_normal=int(found["has_gauss"]), normal=float(found["gauss"])
    )
