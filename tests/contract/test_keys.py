"""Keys: every one belongs to exactly its run, reads back what it was made of, and nothing escapes its prefix."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trimtab_contract import keys
from trimtab_contract.errors import ContractError
from trimtab_contract.keys import RunId

RUN = RunId("team-a", "demo", "0f3c")
NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)


@given(NAMES, NAMES, NAMES)
def test_a_run_reads_back_from_its_text(namespace: str, name: str, uid: str) -> None:
    run = RunId(namespace, name, uid)
    assert RunId.parse(str(run)) == run


@pytest.mark.parametrize("part", ["", ".", "..", "a/b", "a}", "a{b", "a*", "a b", "-a", "a-", "a\n", "a\0", "ä", "a:b"])
@pytest.mark.parametrize("field", ["namespace", "name", "uid"])
def test_a_part_that_could_escape_is_refused_by_its_name(field: str, part: str) -> None:
    with pytest.raises(ContractError, match=f"run id: {field} .* is not a Kubernetes name"):
        RunId(**{"namespace": "ns", "name": "job", "uid": "u", field: part})


@pytest.mark.parametrize("text", ["", "a", "a/b", "a/b/c/d", "a//c"])
def test_a_text_that_is_no_run_is_refused(text: str) -> None:
    with pytest.raises(ContractError):
        RunId.parse(text)


@pytest.mark.parametrize("root", ["", "/", "e2e", "/team/models/"])
def test_everything_a_trainer_stores_lies_under_its_run(root: str) -> None:
    prefix = keys.run_prefix(root, RUN)
    assert not prefix.startswith("/")
    assert "//" not in prefix
    for key in (
        keys.checkpoints_prefix(root, RUN),
        keys.checkpoint_prefix(root, RUN, 170, 2, "abcd"),
        keys.records_prefix(root, RUN, 2),
        keys.records_segment(root, RUN, 2, 1, 30),
        keys.batches_prefix(root, RUN),
        keys.batches_segment(root, RUN, 2, 1, 1, 30),
        keys.evidence_object(root, RUN, 2, "probe"),
        keys.stacks_object(root, RUN, 2, 1, 1000),
    ):
        assert key.startswith(prefix)


def test_two_runs_share_no_key_and_no_prefix() -> None:
    other = RunId("team-a", "demo", "0f3c1")
    for make in (keys.journal_prefix, lambda run: keys.run_prefix("root", run), keys.directive_key, keys.redis_user):
        assert make(RUN) != make(other)
    assert not keys.journal_prefix(other).startswith(keys.journal_prefix(RUN))
    assert not keys.run_prefix("", other).startswith(keys.run_prefix("", RUN))


def test_keys_sort_as_what_they_count() -> None:
    for make in (
        lambda number: keys.journal_record(RUN, number),
        lambda number: keys.checkpoint_prefix("", RUN, number, 1, "x"),
        lambda number: keys.records_segment("", RUN, 1, number, number),
        lambda number: keys.records_prefix("", RUN, number),
    ):
        made = [make(number) for number in (1, 2, 9, 10, 99, 100, 12345)]
        assert made == sorted(made)


@given(st.integers(1, 10**12 - 1), st.integers(1, 10**12 - 1))
def test_numbers_read_back_from_their_keys(first: int, last: int) -> None:
    assert keys.journal_seq(keys.journal_record(RUN, first)) == first
    assert keys.segment_steps(keys.records_segment("root", RUN, 3, first, last)) == (first, last)


@pytest.mark.parametrize("root", ["", "team", "/team/a/"])
def test_step_and_attempt_read_back_from_a_manifests_key(root: str) -> None:
    key = keys.checkpoint_prefix(root, RUN, 170, 3, "ab12") + keys.MANIFEST_NAME
    assert keys.manifest_identity(root, RUN, key) == (170, 3)
    for other in (
        "",
        f"/{key}",
        key + "\n",
        key.replace("170", "-17"),
        key.replace("ab12", ".."),
        key.replace("00", "0"),
    ):
        with pytest.raises(ContractError, match="no manifest below"):
            keys.manifest_identity(root, RUN, other)
    with pytest.raises(ContractError, match="no manifest below"):
        keys.manifest_identity("elsewhere", RUN, key)


@pytest.mark.parametrize(
    "key", ["", "x/1.json", "x/000000000001.json.bak", "x/000000000001.json\n", "000000000001.json"]
)
def test_a_key_of_another_kind_is_no_journal_record(key: str) -> None:
    with pytest.raises(ContractError, match="is not a journal record"):
        keys.journal_seq(key)


@pytest.mark.parametrize("key", ["", "a/1-2", "a/000000000001-000000000002.tmp", "a/000000000001-000000000002\n"])
def test_a_key_of_another_kind_is_no_segment(key: str) -> None:
    with pytest.raises(ContractError, match="is not a records segment"):
        keys.segment_steps(key)


def test_a_runs_redis_user_reaches_its_own_keys_only() -> None:
    metrics, acks, directive = keys.redis_acl_patterns(RUN)
    assert metrics == f"~tt:{{{RUN}}}:a*:metrics"
    assert acks == "~" + keys.ack_stream(RUN)
    assert directive == "%R~" + keys.directive_key(RUN)
    assert keys.metrics_stream(RUN, 12) == f"tt:{{{RUN}}}:a12:metrics"
