"""Windows and samples as pure functions of step and skip ledger, against the obvious slow ways."""

from collections.abc import Iterator
from itertools import count, islice, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trimtab_contract.data_position import DataOrder, Order, SampleId, SkipLedger, SourceOrder, source_seed
from trimtab_contract.errors import InvalidPosition
from trimtab_contract.mixture import Mixture
from trimtab_contract.permutation import mix, permute
from trimtab_contract.sample_arrays import samples_between

RANGE = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))
RANGES = st.lists(RANGE, max_size=6).map(tuple)
FIRST_WINDOW, LATER_WINDOW = [322, 954, 792, 439], [747, 254, 99, 192]
"""Of 1,000 samples in windows of 4 with seed 7: a run that began with another version goes on where it was."""


def obvious_windows(ranges: tuple[tuple[int, int], ...], steps: int) -> list[int]:
    """The windows of steps 1, 2, ...: all windows in order, those in a range left out."""
    skipped = {window for first, last in ranges for window in range(first, last + 1)}
    return list(islice((window for window in count() if window not in skipped), steps))


@given(RANGES)
def test_any_sequence_of_skips_leaves_the_windows_of_the_obvious_list(ranges: tuple[tuple[int, int], ...]) -> None:
    ledger = SkipLedger()
    for first, last in ranges:
        ledger = ledger.including(first, last)
    assert ledger == SkipLedger.of(ranges)
    windows = obvious_windows(ranges, 120)
    assert [ledger.window_of_step(step) for step in range(1, 121)] == windows
    assert [ledger.step_of_window(window) for window in windows] == list(range(1, 121))
    assert [window for window in range(windows[-1]) if ledger.step_of_window(window) is None] == [
        window for window in range(windows[-1]) if window not in windows
    ]


@given(RANGES)
def test_a_ledger_is_sorted_disjoint_and_merged_whatever_it_was_made_from(ranges: tuple[tuple[int, int], ...]) -> None:
    made = SkipLedger.of(ranges).ranges
    assert all(before[1] + 1 < after[0] for before, after in pairwise(made))
    assert SkipLedger(made).ranges == made
    assert {window for first, last in made for window in range(first, last + 1)} == {
        window for first, last in ranges for window in range(first, last + 1)
    }


@given(RANGES, RANGES, st.integers(0, 80))
def test_two_ledgers_agree_up_to_a_step_if_they_map_every_step_so_far_alike(
    mine: tuple[tuple[int, int], ...], theirs: tuple[tuple[int, int], ...], step: int
) -> None:
    same = obvious_windows(mine, step) == obvious_windows(theirs, step)
    assert SkipLedger.of(mine).agrees_up_to(SkipLedger.of(theirs), step) is same


@given(st.integers(2, 40), st.lists(RANGE, max_size=3).map(tuple))
def test_a_skip_ahead_of_the_last_trained_window_never_changes_what_was_trained(
    step: int, ranges: tuple[tuple[int, int], ...]
) -> None:
    ledger = SkipLedger.of(ranges)
    ahead = ledger.window_of_step(step) + 1
    assert ledger.including(ahead, ahead + 4).agrees_up_to(ledger, step)
    assert not ledger.including(ledger.window_of_step(step), ahead).agrees_up_to(ledger, step)


@pytest.mark.parametrize("ranges", [((3, 2),), ((-1, 2),), ((5, 6), (1, 2)), ((1, 4), (4, 6)), ((1, 4), (5, 6))])
def test_a_ledger_out_of_order_is_refused(ranges: tuple[tuple[int, int], ...]) -> None:
    with pytest.raises(InvalidPosition, match="not sorted, disjoint and inclusive"):
        SkipLedger(ranges)


def test_there_is_no_step_before_the_first() -> None:
    with pytest.raises(InvalidPosition, match="step 0 must be at least 1"):
        SkipLedger().window_of_step(0)


@given(st.integers(1, 90), st.integers(1, 12), st.integers(0, 2**70), st.sampled_from(Order))
@settings(max_examples=60)
def test_every_epoch_of_any_order_reads_every_sample_once(samples: int, batch: int, seed: int, order: Order) -> None:
    data = DataOrder.of([samples], global_batch=batch, order=order, seed=seed)
    windows = range(2 * samples)  # batch epochs' worth of windows, twice
    read = [one.sample for window in windows for one in data.samples_of_window(window)]
    for epoch in range(2):
        assert sorted(read[epoch * samples : (epoch + 1) * samples]) == list(range(samples))


def test_shuffled_epochs_differ_and_sequential_ones_do_not() -> None:
    def epoch(order: Order, number: int) -> list[int]:
        return [SourceOrder(order, 64, 7).sample(number * 64 + offset) for offset in range(64)]

    assert epoch(Order.SEQUENTIAL, 0) == epoch(Order.SEQUENTIAL, 3) == list(range(64))
    assert epoch(Order.SHUFFLED, 0) != epoch(Order.SHUFFLED, 1)
    assert SourceOrder(Order.SHUFFLED, 64, 7).sample(5) != SourceOrder(Order.SHUFFLED, 64, 8).sample(5)


def test_one_source_is_read_in_the_order_it_always_was() -> None:
    data = DataOrder.of([1000], global_batch=4, order=Order.SHUFFLED, seed=7)
    assert [one.sample for one in data.samples_of_window(0)] == FIRST_WINDOW
    assert [one.sample for one in data.samples_of_window(1000)] == LATER_WINDOW


@pytest.mark.parametrize(("samples", "batch"), [(0, 4), (4, 0), (-1, 4)])
def test_sizes_no_run_could_train_on_are_refused(samples: int, batch: int) -> None:
    with pytest.raises(InvalidPosition, match="must be at least 1"):
        DataOrder.of([samples], global_batch=batch)


def test_a_negative_window_is_refused() -> None:
    with pytest.raises(InvalidPosition, match="window -1 is negative"):
        DataOrder.of([4], global_batch=2).samples_of_window(-1)


def obvious_samples(sizes: list[int], weights: list[int], seed: int, order: Order, steps: int) -> list[SampleId]:
    """What a reader of each source, that never looks back, hands out when the mixture asks it."""

    def reader(number: int) -> Iterator[SampleId]:
        for epoch in count():
            key = mix(mix(source_seed(seed, number)) ^ epoch)
            for offset in range(sizes[number]):
                shuffled = order is Order.SHUFFLED
                yield SampleId(number, permute(offset, sizes[number], key) if shuffled else offset)

    readers = [reader(number) for number in range(len(sizes))]
    mixture = Mixture.of(weights)
    return [next(readers[mixture.place(position)[0]]) for position in range(steps)]


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 9)), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(0, 2**63),
    st.sampled_from(Order),
    RANGES,
)
@settings(max_examples=40)
def test_any_skips_sources_and_epochs_leave_the_samples_of_the_obvious_list(
    sources: list[tuple[int, int]], batch: int, seed: int, order: Order, ranges: tuple[tuple[int, int], ...]
) -> None:
    sizes, weights = [size for size, _ in sources], [weight for _, weight in sources]
    data = DataOrder.of(sizes, global_batch=batch, order=order, seed=seed, weights=weights)
    windows = obvious_windows(ranges, 25)
    listed = obvious_samples(sizes, weights, seed, order, (windows[-1] + 1) * batch)
    ledger = SkipLedger.of(ranges)
    for step, window in enumerate(windows, start=1):
        expected = tuple(listed[window * batch : (window + 1) * batch])
        assert data.samples_of_window(ledger.window_of_step(step)) == expected
        assert samples_between(data, window * batch, batch) == expected


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 500))
def test_ranks_and_accumulation_steps_together_read_the_window_in_its_order(
    ranks: int, accumulation: int, micro_batch: int, window: int
) -> None:
    batch = ranks * accumulation * micro_batch
    data = DataOrder.of([37, 11], global_batch=batch, order=Order.SHUFFLED, seed=3, weights=[2, 1])
    first, _ = data.positions_of_window(window)
    micro_batches = range(ranks * accumulation)
    pieces = [samples_between(data, first + number * micro_batch, micro_batch) for number in micro_batches]
    assert tuple(one for piece in pieces for one in piece) == data.samples_of_window(window)


def test_two_sources_of_one_size_are_not_shuffled_alike() -> None:
    data = DataOrder.of([64, 64], global_batch=128, order=Order.SHUFFLED, seed=3, weights=[1, 1])
    samples = data.samples_of_window(0)
    first, second = ([one.sample for one in samples if one.source == number] for number in range(2))
    assert sorted(first) == sorted(second) == list(range(64))
    assert first != second


def test_every_source_needs_a_weight() -> None:
    with pytest.raises(InvalidPosition, match="2 sources have 1 shares"):
        DataOrder.of([4, 4], global_batch=2)
