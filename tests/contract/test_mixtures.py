"""The mixture of sources: exact everywhere it can be, and a function of the position alone."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trimtab_contract.errors import InvalidPosition
from trimtab_contract.mixture import LONGEST_CYCLE, Mixture

SHARES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


def counts(mixture: Mixture, positions: int) -> list[list[int]]:
    """How many samples of each source lie before positions 0, 1, ...: counted one by one."""
    found = [[0] * len(mixture.shares)]
    for position in range(positions):
        source, _ = mixture.place(position)
        found.append([count + (number == source) for number, count in enumerate(found[-1])])
    return found


def fits(count: int, positions: int, mixture: Mixture, source: int) -> bool:
    """Whether a count is the floor or the ceiling of the source's share of so many positions."""
    share = positions * mixture.shares[source]
    return share // mixture.cycle <= count <= -(-share // mixture.cycle)


@given(SHARES)
def test_up_to_any_position_each_source_has_floor_or_ceiling_of_its_share(weights: list[int]) -> None:
    mixture = Mixture.of(weights)
    for positions, found in enumerate(counts(mixture, 2 * mixture.cycle)):
        assert all(fits(count, positions, mixture, source) for source, count in enumerate(found))


@given(st.tuples(st.integers(1, 30), st.integers(1, 30)))
@settings(max_examples=60)
def test_of_two_sources_any_stretch_wherever_it_begins_has_floor_or_ceiling(weights: tuple[int, int]) -> None:
    mixture = Mixture.of(weights)
    before = counts(mixture, 2 * mixture.cycle)
    for begin in range(mixture.cycle):
        for end in range(begin, begin + mixture.cycle):
            assert fits(before[end][0] - before[begin][0], end - begin, mixture, 0)


@given(SHARES)
@settings(max_examples=40)
def test_of_any_sources_a_stretch_is_off_by_less_than_two(weights: list[int]) -> None:
    mixture = Mixture.of(weights)
    before = counts(mixture, 2 * mixture.cycle)
    for begin in range(0, mixture.cycle, 3):
        for end in range(begin, begin + mixture.cycle, 5):
            for source, share in enumerate(mixture.shares):
                count = before[end][source] - before[begin][source]
                assert abs(count * mixture.cycle - (end - begin) * share) < 2 * mixture.cycle


@given(SHARES, st.integers(0, 10**15))
@settings(max_examples=40)
def test_a_position_far_away_is_found_like_one_nearby(weights: list[int], cycles: int) -> None:
    mixture = Mixture.of(weights)
    for position in range(mixture.cycle):
        source, index = mixture.place(position)
        assert mixture.place(position + cycles * mixture.cycle) == (source, index + cycles * mixture.shares[source])


@given(SHARES)
@settings(max_examples=40)
def test_each_source_is_read_in_its_own_order_without_a_gap(weights: list[int]) -> None:
    mixture = Mixture.of(weights)
    places = [mixture.place(position) for position in range(3 * mixture.cycle)]
    for number in range(len(weights)):
        own = [index for source, index in places if source == number]
        assert own == list(range(len(own)))


def test_weights_mean_the_decimal_numbers_they_are_written_as() -> None:
    assert Mixture.of([0.7, 0.2, 0.1]).shares == (7, 2, 1)
    assert Mixture.of([1e-3, 1]).shares == (1, 1000)
    assert Mixture.of([3.0, 3, 3]).shares == (1, 1, 1)


@pytest.mark.parametrize("weights", [[], [1, 0], [1, -2], [float("nan")], [float("inf"), 1]])
def test_what_is_no_weight_is_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidPosition, match="must all be above 0"):
        Mixture.of(weights)


def test_weights_whose_cycle_would_be_too_long_are_refused() -> None:
    with pytest.raises(InvalidPosition, match="give weights of fewer digits"):
        Mixture.of([0.123456, 0.876544])
    assert Mixture.of([1, LONGEST_CYCLE - 1]).cycle == LONGEST_CYCLE


def test_shares_with_a_common_divisor_are_refused() -> None:
    with pytest.raises(InvalidPosition, match="without a common divisor"):
        Mixture((2, 4))
