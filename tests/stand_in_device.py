"""A device in PyTorch's own sense that is none: its tensors lie in this process's memory, and the CPU computes.

It shows what a machine without an accelerator cannot: that nothing mixes the memory of the device with that of the
host, how many operators are launched, and how often the host waits until the device is done. PyTorch's autograd,
parameters and modules take it as they take any device; numbers are those of the CPU.

`install` changes this process for good (PyTorch has room for one such device), so tests run in a process of their own.
"""

from collections import Counter
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

NAME: Final = "standin"
DEVICE: Final = f"{NAME}:0"

aten = torch.ops.aten

_WAITING: Final = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.is_nonzero.default,
    aten.unique_dim.default,
    aten._unique2.default,
    aten.repeat_interleave.Tensor,
}
"""What a host cannot go on behind before the device has computed all that came before."""

_PRODUCTS: Final = {
    aten.dot.default,
    aten.vdot.default,
    aten.mv.default,
    aten.mm.default,
    aten.bmm.default,
    aten.addmv.default,
    aten.addmm.default,
    aten.baddbmm.default,
}
"""What CUDA computes of floating-point numbers only."""

_INDEXING: Final = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default}
_COPYING: Final = {aten.copy_.default, aten._to_copy.default}
_FREE: Final = {
    aten._unsafe_view.default,
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.empty_like.default,
}
"""Operators that launch nothing on any device; views say so themselves."""


class Hooks(backend_registration._DummyPrivateUse1Hook):
    """What PyTorch asks a backend."""


class Module(backend_registration._DummyBackendModule):
    """What `torch.standin` is."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        """As on CUDA."""
        return [torch.bfloat16, torch.float16]

    def device_count(self) -> int:
        """There is one."""
        return 1

    def set_device(self, device: object) -> None:
        """There is no other."""

    def synchronize(self, device: object = None) -> None:
        """Everything is done at once."""


def install() -> None:
    """Make the device known to PyTorch."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module(), hook=Hooks())


class OnDevice(Tensor):
    """A tensor of the device; `host` holds its elements."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "OnDevice":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            layout=host.layout,
            device=DEVICE,
            requires_grad=host.requires_grad,
        )
        made.host = host
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self) -> str:
        return f"OnDevice({self.host})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute on the host what the device would."""
        return _computed(func, args, kwargs or {})


class Watch(TorchDispatchMode):
    """While entered, there is the device, and what it does is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __enter__(self) -> "Watch":
        # Tensors made of Python's numbers come here for their way to the device.
        self._before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._before)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Make tensors on the device, and count what happens to those that are there."""
        given = kwargs or {}
        leaves = tree_leaves((args, given))
        on_device = any(isinstance(leaf, OnDevice) for leaf in leaves)
        target = given.get("device")
        made_there = target is not None and torch.device(target).type == NAME
        if on_device or made_there:
            self._count(func, args, given, target)
        if on_device:
            return _computed(func, args, given)
        given = {name: value for name, value in given.items() if name != "pin_memory"}
        if (kwargs or {}).get("pin_memory"):
            made = func(*args, **given)
            made.pinned = True
            return made
        if made_there:
            return tree_map(_wrapped, func(*args, **given | {"device": torch.device("cpu")}))
        return func(*args, **given)

    def _count(self, func: Any, args: Any, given: Any, target: Any) -> None:
        if _waits(func, args, given, target):
            self.waits[str(func)] += 1
        if not func.is_view and func not in _FREE:
            self.launches[str(func)] += 1


def _waits(func: Any, args: Any, given: Any, target: Any) -> bool:
    if func in _WAITING:
        return True
    if func in _INDEXING:
        return any(one is not None and one.dtype in {torch.bool, torch.uint8} for one in args[1])
    if func not in _COPYING:
        return False
    source = args[1] if func is aten.copy_.default else args[0]
    if not isinstance(source, OnDevice):
        # As on CUDA: the host's memory is read in the order of what the device does, unless it stays where it is.
        return not (getattr(source, "pinned", False) and _is_non_blocking(args, given))
    if func is aten.copy_.default:
        return not isinstance(args[0], OnDevice) and not _is_non_blocking(args, given)
    return target is not None and torch.device(target).type == "cpu"


def _is_non_blocking(args: Any, given: Any) -> bool:
    return bool(given.get("non_blocking") or args[2:3] == (True,))


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, causal: bool = False, *, scale: Any = None
) -> Any:
    """The kernel of CUDA that takes keys with fewer heads, and returns the log-sum-exp, by that of the CPU."""
    assert not dropout
    output, log_sum_exp = aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, causal, scale=scale)
    nothing = torch.zeros(0)
    return output, log_sum_exp, nothing, nothing, query.shape[2], key.shape[2], nothing, nothing, nothing


def _flash_backward(
    gradient: Any, query: Any, key: Any, value: Any, output: Any, log_sum_exp: Any, *rest: Any, scale: Any = None
) -> Any:
    causal = rest[5]
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, log_sum_exp, 0.0, causal, scale=scale
    )


_OF_CUDA: Final = {
    aten._scaled_dot_product_flash_attention.default: _flash,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
}


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    if func.namespace == "c10d":
        # Exchanges fill what they are given, and return it beside what to wait for.
        result = func(*_unwrapped(args), **_unwrapped(kwargs))
        return (args[0], *result[1:]) if isinstance(result, tuple) else result
    _require_one_device(func, args, kwargs)
    if func in _PRODUCTS and not args[0].is_floating_point():
        raise RuntimeError(f"{func}: not implemented for {args[0].dtype} on CUDA")
    given = dict(kwargs)
    back = False
    if given.get("device") is not None:
        back = torch.device(given["device"]).type == "cpu"
        given["device"] = torch.device("cpu")
    given.pop("pin_memory", None)
    if func in _OF_CUDA:
        return tree_map(_wrapped, _OF_CUDA[func](*_unwrapped(args), **_unwrapped(given)))
    result = func(*_unwrapped(args), **_unwrapped(given))
    if func is aten.copy_.default and not isinstance(args[0], OnDevice):
        return args[0]
    if back:
        return result.clone() if func is aten._to_copy.default else result
    return return_and_correct_aliasing(func, args, kwargs, tree_map(_wrapped, result))


def _require_one_device(func: Any, args: Any, kwargs: Any) -> None:
    if func in _COPYING:
        return
    tensors = [
        leaf for leaf in tree_leaves((args[:1] if func in _INDEXING else args, kwargs)) if isinstance(leaf, Tensor)
    ]
    strangers = [one for one in tensors if not isinstance(one, OnDevice) and one.ndim > 0]
    if strangers and any(isinstance(one, OnDevice) for one in tensors):
        raise RuntimeError(f"{func}: Expected all tensors to be on the same device, but found {DEVICE} and cpu")


def _unwrapped(tree: Any) -> Any:
    return tree_map(lambda leaf: leaf.host if isinstance(leaf, OnDevice) else leaf, tree)


def _wrapped(leaf: Any) -> Any:
    return OnDevice(leaf) if isinstance(leaf, Tensor) and not isinstance(leaf, OnDevice) else leaf
