"""Ranks with a plain model that `fully_shard` dealt out, as real processes; each has the whole model beside it, too.

Started by `torch.multiprocessing`; each leaves what it saw in `<folder>/<rank>.json`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from trimtab_trainer.collectives import GroupPeers
from trimtab_trainer.distributed_tensors import own_part, with_part
from trimtab_trainer.errors import PeerLost
from trimtab_trainer.fields import InvalidFields
from trimtab_trainer.head_parameters import AttentionHeads
from trimtab_trainer.optim import (
    LogitRecorder,
    MuonClip,
    MuonClipConfig,
    ParameterGroup,
    ShardedMuonClip,
    fused_projection,
    latent_projections,
    multihead_attention,
    muon,
    parameter_groups,
    separate_projections,
    shard_plan,
)

WIDTH, HEADS, EXPERTS, TOKENS, BATCH, STEPS = 20, 2, 4, 6, 12, 3
ROUND_BYTES = 1 << 13
IDLE_ON_LAST = "mixture.up.weight"
"""Has no gradient on the last rank."""


class Attending(nn.Module):
    """Attention of one of four kinds."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        sizes = {
            "fused": {"qkv": 3 * WIDTH},
            "grouped": {"q": WIDTH, "k": WIDTH // 2, "v": WIDTH // 2},
            "latent": {"q": HEADS * 10, "kv": HEADS * (6 + 10), "rotary": 4},
        }
        for name, rows in sizes.get(kind, {}).items():
            self.add_module(name, nn.Linear(WIDTH, rows))
        if kind == "packed":
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, add_bias_kv=True)

    def forward(self, x: Tensor) -> Tensor:
        """Attend over `x` [batch, tokens, width]."""
        if self.kind == "packed":
            return x + self.inner(x, x, x, need_weights=False)[0]
        maps = {name: each(x) for name, each in self.named_children()}
        if self.kind == "fused":
            query, key, value = (each.unflatten(-1, (HEADS, -1)) for each in maps["qkv"].chunk(3, -1))
        elif self.kind == "grouped":
            query, key, value = (
                maps[name].unflatten(-1, (-1, 10)).expand(-1, -1, HEADS, -1) for name in ("q", "k", "v")
            )
        else:
            query = maps["q"].unflatten(-1, (HEADS, -1))
            content, value = maps["kv"].unflatten(-1, (HEADS, -1)).split((6, 10), -1)
            key = torch.cat((content, maps["rotary"][:, :, None].expand(-1, -1, HEADS, -1)), -1)
        attended = F.scaled_dot_product_attention(*(each.transpose(1, 2) for each in (query, key, value)))
        return x + attended.transpose(1, 2).flatten(2)

    def heads(self, name: str) -> AttentionHeads:
        """What makes its logits, of the parameters that it has now."""
        modules: dict[str, Any] = dict(self.named_children())
        if self.kind == "packed":
            return multihead_attention(name, modules["inner"])
        if self.kind == "fused":
            return fused_projection(name, modules["qkv"], heads=HEADS)
        if self.kind == "grouped":
            return separate_projections(name, modules["q"], modules["k"], heads=HEADS, key_heads=1)
        sizes = {"content_dimension": 6, "rotary_dimension": 4, "value_dimension": 10}
        return latent_projections(name, modules["q"], modules["kv"], heads=HEADS, **sizes)


class Mixture(nn.Module):
    """Experts in one stack, of which each token takes one, and matrices whose rows no number of ranks shares alike."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(EXPERTS, WIDTH, WIDTH) / WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 50), nn.Linear(50, WIDTH)
        self.narrow, self.unused = nn.Linear(WIDTH, 2, bias=False), nn.Linear(WIDTH, 7)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [batch, tokens, width]."""
        weights = self.router(x).softmax(-1)
        chosen = F.one_hot(weights.argmax(-1), EXPERTS) * weights
        mixed = torch.einsum("btd,eod,bte->bto", x, self.experts, chosen)
        return x + mixed + self.down(F.gelu(self.up(x))) + self.narrow(x).sum(-1, keepdim=True)


class Model(nn.Module):
    """Tokens in, a loss for each sample out."""

    def __init__(self) -> None:
        super().__init__()
        self.lookup = nn.Embedding(29, WIDTH)
        self.layers = nn.ModuleList(Attending(kind) for kind in ("fused", "packed", "grouped", "latent"))
        self.mixture = Mixture()

    def forward(self, tokens: Tensor) -> Tensor:
        """Of `tokens` [batch, tokens] the loss of each."""
        x = self.lookup(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.mixture(x).square().mean((1, 2))

    def attention(self) -> list[AttentionHeads]:
        """What makes the logits of each layer."""
        return [layer.heads(f"layers.{n}") for n, layer in enumerate(self.layers) if isinstance(layer, Attending)]


def settings(model: Model) -> MuonClipConfig:
    """Thresholds that some heads exceed, and what is special in the model."""
    groups = (
        ParameterGroup(pattern="*.qkv.weight", split=(WIDTH,) * 3),
        ParameterGroup(pattern="*.experts", optimizer="muon", learning_rate_scale=0.5),
        *parameter_groups(model),
    )
    return MuonClipConfig(groups=groups, qk_clip_layer_thresholds=(0.3, 0.1, 0.3, 0.2))


class Pair:
    """A model that is sharded, and the same model whole, in one process."""

    def __init__(self, mesh: DeviceMesh, peers: GroupPeers, *, kind: torch.dtype = torch.float32) -> None:
        torch.manual_seed(0)
        self.whole, self.model = Model().to(kind), Model().to(kind)
        self.model.load_state_dict(self.whole.state_dict())
        config = replace(settings(self.whole), master_weights=kind is not torch.float32)
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.everybody, self.peers = GroupPeers(), peers
        self.sharded = ShardedMuonClip(self.model.named_parameters(), self.model.attention(), config, peers)
        self.alone = MuonClip(self.whole.named_parameters(), self.whole.attention(), config)

    def step(self, number: int) -> tuple[float, float, list[float]]:
        """One step of both from the gradients of the shards, and the largest logits that each has seen itself.

        How far they are apart in what they tell, and in their weights; the smallest factor of each layer.
        """
        tokens = torch.randint(0, 29, (BATCH, TOKENS), generator=torch.Generator().manual_seed(number))
        losses, ours = self._forward(self.model, tokens.chunk(self.everybody.size)[self.everybody.rank])
        losses.mean().backward()
        self.everybody.max(ours)
        _, theirs = self._forward(self.whole, tokens)
        if self.everybody.rank == self.everybody.size - 1:
            self.model.get_parameter(IDLE_ON_LAST).grad = None
        for name, parameter in self.model.named_parameters():
            local = own_part(parameter)
            part = torch.zeros_like(local) if parameter.grad is None else own_part(parameter.grad)
            gradient = full(with_part(part, parameter))
            self.whole.get_parameter(name).grad = gradient if gradient.any() else None
        told, expected = self.sharded.step(ours), self.alone.step(theirs)
        self.sharded.zero_grad()
        apart = max(
            abs(told.update_rms - expected.update_rms), float((told.qk_clip_gamma - expected.qk_clip_gamma).abs().max())
        )
        return apart, self.weights_apart(), told.qk_clip_gamma.amin(1).tolist()

    def weights_apart(self) -> float:
        """The largest distance of two weights, relative to the largest of their tensor."""
        whole = {name: each.detach() for name, each in self.whole.named_parameters()}
        found = {name: full(each) for name, each in self.model.named_parameters()}
        return max(float((each - whole[name]).abs().max() / whole[name].abs().max()) for name, each in found.items())

    def _forward(self, model: Model, tokens: Tensor) -> tuple[Tensor, Tensor]:
        recorder = LogitRecorder(4)
        with recorder:
            losses = model(tokens)
        return losses, recorder.max_logits()


class WatchedPeers(GroupPeers):
    """Peers that count the exchanges under way."""

    under_way = 0

    def trade_later(self, *given: Any) -> Callable[[], None]:
        """Begin to trade."""
        wait = super().trade_later(*given)
        self.under_way += 1

        def done() -> None:
            wait()
            self.under_way -= 1

        return done


def overlaps(pair: Pair, peers: WatchedPeers) -> dict[str, Any]:
    """Of one update how many exchanges are under way while each part is computed, and how many bytes are whole."""
    own, seen, room = pair.sharded.own, list[int](), list[int]()
    wholes = [route.parameter for route in own.routes]
    advance = own.advance

    def watched(*given: Any) -> None:
        seen.append(peers.under_way)
        kept = (one for whole in wholes for one in (whole, whole.grad) if one is not None)
        room.append(sum(one.untyped_storage().nbytes() for one in kept))
        advance(*given)

    with patch.object(own, "advance", watched):
        pair.sharded.step(torch.zeros(4, HEADS))
    between = sum(whole.untyped_storage().nbytes() for whole in wholes)
    return {"under way": seen, "room": max(room), "all": 2 * sum(one.nbytes for one in wholes), "between": between}


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor, sharded or not."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def flat(state: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a state, by its path; the order is that of the state."""
    for key, value in state.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]


def at_once(pair: Pair, logits: Tensor) -> bool:
    """Whether an update in rounds has the bits of one of all parameters of this rank at once."""
    own = [route.name for route in pair.sharded.own.routes]
    every = {name: full(each).clone() for name, each in pair.model.named_parameters()}
    gradients = {
        name: torch.randn(each.shape, generator=torch.Generator().manual_seed(len(name)))
        for name, each in every.items()
    }
    for name, parameter in pair.model.named_parameters():
        assert isinstance(parameter, DTensor)
        parameter.grad = distribute_tensor(gradients[name], parameter.device_mesh, parameter.placements)
    plain = Model()
    plain.load_state_dict(every)
    named = dict(plain.named_parameters())
    layers = [
        layer
        if all(any(_is_of(one.parameter, named[name]) for name in own) for one in layer.parameters)
        else AttentionHeads("multiHead", HEADS, ())
        for layer in plain.attention()
    ]
    groups = tuple(
        group
        for group in pair.sharded.config.groups
        if any(Path(name).match(group.pattern) or name == group.pattern for name in own)
    )
    reference = MuonClip([(name, named[name]) for name in own], layers, replace(pair.sharded.config, groups=groups))
    state = pair.sharded.state_dict()
    whole_state = {
        key: {name: full(one) for name, one in value.items()} if isinstance(value, dict) else value
        for key, value in state.items()
    }
    reference.load_state_dict(
        {
            key: {name: whole_state[key][name] for name in mine} if isinstance(mine, dict) else whole_state[key]
            for key, mine in reference.state_dict().items()
        }
    )
    for name in own:
        named[name].grad = gradients[name]
    reference.step(logits)
    pair.sharded.step(logits)
    after = {name: full(each) for name, each in pair.model.named_parameters()}
    changed = all(not torch.equal(after[name], every[name]) for name in own)
    return changed and all(torch.equal(after[name], named[name]) for name in own)


def _is_of(view: Tensor, parameter: Tensor) -> bool:
    return view is parameter or view._base is parameter


def join(rank: int, ranks: int, port: int, seconds: float = 120) -> None:
    """Enter the default group, in which each rank has one thread."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=ranks, timeout=timedelta(seconds=seconds))


def story(rank: int, ranks: int, port: int, folder: str) -> None:
    """Train beside the whole model in many rounds, save, and go on with what other ranks saved; then one rank dies."""
    join(rank, ranks, port)
    shard_plan.ROUND_BYTES, muon.SLAB_BYTES = ROUND_BYTES, 1 << 12
    mesh, peers = init_device_mesh("cpu", (ranks,)), WatchedPeers()
    pair = Pair(mesh, peers)
    report: dict[str, Any] = {
        "steps": [pair.step(number) for number in range(STEPS)],
        "keys": [name for name, _ in flat(pair.sharded.state_dict())],
        "expected keys": sorted(name for name, _ in flat(pair.alone.state_dict())),
        "overlap": overlaps(pair, peers),
        "bits": at_once(pair, torch.tensor([[1.0, 0.0]] * 4)),
    }
    state = {"model": pair.model.state_dict(), "optimizer": pair.sharded.state_dict()}
    dcp.save(state, checkpoint_id=f"{folder}/saved-by-{ranks}")
    whole = {name: full(one) if isinstance(one, Tensor) else one for name, one in flat(state)}
    if rank == 0:
        torch.save(whole, f"{folder}/whole-{ranks}.pt")

    # Others have saved before, in a world of another size: what they had is what is here then.
    others = f"{folder}/saved-by-{5 - ranks}"
    if Path(others).exists():
        fresh = Pair(mesh, peers)
        loaded = {"model": fresh.model.state_dict(), "optimizer": fresh.sharded.state_dict()}
        dcp.load(loaded, checkpoint_id=others)
        fresh.model.load_state_dict(loaded["model"])
        fresh.sharded.load_state_dict(loaded["optimizer"])
        again = {"model": fresh.model.state_dict(), "optimizer": fresh.sharded.state_dict()}
        expected = torch.load(f"{folder}/whole-{5 - ranks}.pt")
        report["resharded"] = all(
            torch.equal(full(one), expected[name]) if isinstance(one, Tensor) else one == expected[name]
            for name, one in flat(again)
        )
        fresh.alone.load_state_dict(_nested(expected, "optimizer"))
        fresh.whole.load_state_dict(_nested(expected, "model", flat_names=True))
        report["went on"] = fresh.step(STEPS)
        # A state that is whole on every rank, as one MuonClip has it.
        fresh.sharded.load_state_dict(_nested(expected, "optimizer"))
        report["from replicas"] = all(
            torch.equal(full(one), expected[f"optimizer.{name}"])
            for name, one in flat(fresh.sharded.state_dict())
            if isinstance(one, Tensor)
        )
    rounded = Pair(mesh, peers, kind=torch.bfloat16)
    report["masters"] = _masters_apart(rounded)
    GroupPeers().sum(torch.zeros(1))
    if rank < ranks - 1:
        try:
            pair.sharded.step(torch.zeros(4, HEADS))
        except PeerLost as error:
            report["ended by"] = str(error)
    _leave(report, rank, folder)


def _masters_apart(pair: Pair) -> float:
    """How far the float32 copies of bfloat16 parameters are apart after a step from equal gradients."""
    for name, parameter in pair.whole.named_parameters():
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))).bfloat16()
        sharded = pair.model.get_parameter(name)
        assert isinstance(sharded, DTensor)
        sharded.grad = distribute_tensor(parameter.grad, sharded.device_mesh, sharded.placements)
    logits = torch.tensor([[1.0, 0.0]] * 4)
    pair.sharded.step(logits)
    pair.alone.step(logits)
    masters = pair.alone.state_dict()["master_weights"]
    copies = {name: full(one) for name, one in pair.sharded.state_dict()["master_weights"].items()}
    weights = {name: full(one) for name, one in pair.model.named_parameters()}
    assert all(torch.equal(weights[name], one.bfloat16()) for name, one in copies.items())
    assert masters.keys() == copies.keys()
    return max(float((one - masters[name]).abs().max()) for name, one in copies.items())


def replicated_shards(rank: int, ranks: int, port: int, folder: str) -> None:
    """Train with two replicas of each shard, and give the optimizer what it must refuse."""
    join(rank, ranks, port)
    mesh = init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("replicate", "shard"))
    pair = Pair(mesh, GroupPeers(mesh.get_group("shard")))
    report: dict[str, Any] = {"steps": [pair.step(number) for number in range(STEPS)]}
    line = init_device_mesh("cpu", (ranks,))
    everybody = GroupPeers()
    wrong = {
        "plain": torch.zeros(8, 8),
        "columns": distribute_tensor(torch.zeros(8, 8), line, [Shard(1)]),
        "tensor parallel": distribute_tensor(torch.zeros(8, 8), mesh, [Shard(0), Shard(1)]),
        "replicated": distribute_tensor(torch.zeros(8, 8), line, [Replicate()]),
        "other ranks": distribute_tensor(torch.zeros(8, 8), mesh, [Replicate(), Shard(0)]),
    }
    report["refused"] = {name: _refusal({name: tensor}, everybody) for name, tensor in wrong.items()}
    sharded = distribute_tensor(torch.zeros(8, 8), line, [Shard(0)])
    report["refused"]["by MuonClip"] = _refusal({"weight": sharded}, None)
    made = ShardedMuonClip([("weight", sharded)], (), MuonClipConfig(), everybody)
    state = made.state_dict()
    state["muon_momentum"]["weight"] = wrong["columns"]
    try:
        made.load_state_dict(state)
    except InvalidFields as error:
        report["refused"]["state"] = list(error.problems)
    patient = GroupPeers(dist.new_group(timeout=timedelta(seconds=2)))
    waiting = ShardedMuonClip([("weight", sharded)], (), MuonClipConfig(), patient)
    if rank < ranks - 1:
        try:
            waiting.step(torch.zeros(0, 0))
        except PeerLost as error:
            report["ended by"] = str(error)
    everybody.sum(torch.zeros(1))
    _leave(report, rank, folder)


def _refusal(named: dict[str, Tensor], peers: GroupPeers | None) -> list[str]:
    try:
        if peers is None:
            MuonClip(named.items(), (), MuonClipConfig())
        else:
            ShardedMuonClip(named.items(), (), MuonClipConfig(), peers)
    except InvalidFields as error:
        return list(error.problems)
    return []


def _nested(state: dict[str, Any], part: str, *, flat_names: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, value in state.items():
        if path.startswith(f"{part}."):
            kind, _, name = path.removeprefix(f"{part}.").partition(".")
            if flat_names or not name:
                found[path.removeprefix(f"{part}.")] = value
            else:
                found.setdefault(kind, {})[name] = value
    return found


def _leave(report: dict[str, Any], rank: int, folder: str) -> None:
    (Path(folder) / f"{rank}.json").write_text(json.dumps(report))
    # Nothing is closed in order, as when a machine is lost.
    os._exit(0)
