"""The keyed permutation: a bijection, and for whole arrays the very same."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trimtab_contract.permutation import permute
from trimtab_contract.permutation_arrays import LARGEST_SIZE, permute_all

KEY = st.integers(0, 2**64 - 1)


@given(st.integers(1, 700), KEY)
@settings(max_examples=60)
def test_the_permutation_is_a_bijection_of_any_size(size: int, key: int) -> None:
    assert sorted(permute(index, size, key) for index in range(size)) == list(range(size))


def test_the_permutation_depends_on_its_key_and_shuffles() -> None:
    orders = [[permute(index, 1000, key) for index in range(1000)] for key in range(20)]
    assert len({tuple(order) for order in orders}) == 20
    # A random permutation has one fixed point on average.
    assert sum(place == value for order in orders for place, value in enumerate(order)) < 60


@given(st.one_of(st.integers(1, 3000), st.integers(1, LARGEST_SIZE)), KEY, st.data())
@settings(max_examples=150)
def test_an_array_is_permuted_as_its_indices_are_one_by_one(size: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, size - 1), max_size=40))
    found = permute_all(np.array(indices, dtype=np.int64), size, key)
    assert found.tolist() == [permute(index, size, key) for index in indices]


def test_an_array_of_many_chunks_is_a_bijection_and_leaves_its_argument_alone() -> None:
    indices = np.arange(100_003, dtype=np.uint64)
    found = permute_all(indices, 100_003, 9)
    assert np.array_equal(np.sort(found), indices)
    assert np.array_equal(indices, np.arange(100_003))
    places = [0, 32_767, 32_768, 99_999, 100_002]
    assert [int(found[place]) for place in places] == [permute(place, 100_003, 9) for place in places]


@pytest.mark.parametrize("index", [10, -1])
def test_an_index_outside_the_size_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="not below size 10"):
        permute_all(np.array([3, index]), 10, 1)


def test_a_size_whose_halves_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="beyond"):
        permute_all(np.array([3]), LARGEST_SIZE + 1, 1)
