"""A forward pass that an exception or a key on the keyboard ends: what its attention has noted goes with it."""

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack  # pyright: ignore[reportPrivateUsage]
from watched_llama import HEADS, exactly, llama, tokens, whole_matrix


class Broken(nn.Module):
    """What stands for the output map of the second layer, and ends the forward pass there."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, _: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
def test_a_forward_pass_that_broke_off_leaves_nothing_of_any_layer_behind(error: BaseException) -> None:
    model = llama()
    optimizer = exactly(model)
    model(input_ids=tokens(0))
    whole, model.model.layers[1].self_attn.o_proj = model.model.layers[1].self_attn.o_proj, Broken(error)
    with torch.no_grad():
        kept = [layer.self_attn.q_proj.weight.mul_(50) for layer in model.model.layers]
    with pytest.raises(type(error)):
        model(input_ids=tokens(1))
    with torch.no_grad():
        for weight in kept:
            weight.div_(50)
    model.model.layers[1].self_attn.o_proj = whole
    model(input_ids=tokens(2))
    expected = torch.stack([whole_matrix(model, tokens(seed)) for seed in (0, 2)]).amax(0)
    torch.testing.assert_close(optimizer.take_logits().max_logit.double(), expected, rtol=2e-5, atol=1e-5)
    assert not _get_current_function_mode_stack()


def test_a_module_that_leaves_training_mode_within_its_forward_pass_is_left_all_the_same() -> None:
    model = llama()
    optimizer = exactly(model)
    layer = model.model.layers[0].self_attn

    def turn(*_: object) -> None:
        layer.train(not layer.training)

    handle = layer.o_proj.register_forward_hook(turn)
    model(input_ids=tokens())
    layer.train()
    assert not _get_current_function_mode_stack()
    assert optimizer.take_logits().max_logit.shape == (2, HEADS)
    layer.eval()
    model(input_ids=tokens())
    handle.remove()
    assert not _get_current_function_mode_stack()
