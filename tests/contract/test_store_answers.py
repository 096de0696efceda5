"""What a refusal of an S3 server means, and what to do."""

import pytest
from trimtab_contract.store_answers import StoreAnswer, advice, region_of, store_answer

ANSWERS = [
    (404, "NoSuchKey", StoreAnswer.ABSENT),
    (404, "NoSuchUpload", StoreAnswer.ABSENT),
    (404, "404", StoreAnswer.ABSENT),
    (404, "NoSuchBucket", StoreAnswer.NO_BUCKET),
    (403, "SignatureDoesNotMatch", StoreAnswer.CREDENTIALS),
    (403, "InvalidAccessKeyId", StoreAnswer.CREDENTIALS),
    (400, "ExpiredToken", StoreAnswer.CREDENTIALS),
    (403, "AccessDenied", StoreAnswer.RIGHTS),
    (403, "", StoreAnswer.RIGHTS),
    (301, "PermanentRedirect", StoreAnswer.REGION),
    (400, "AuthorizationHeaderMalformed", StoreAnswer.REGION),
    (301, "301", StoreAnswer.REGION),
    (403, "RequestTimeTooSkewed", StoreAnswer.CLOCK),
    (507, "InsufficientStorage", StoreAnswer.FULL),
    (507, "", StoreAnswer.FULL),
    (400, "XMinioAdminBucketQuotaExceeded", StoreAnswer.FULL),
    (403, "QuotaExceeded", StoreAnswer.FULL),
    (503, "SlowDown", StoreAnswer.BUSY),
    (400, "RequestTimeout", StoreAnswer.BUSY),
    (429, "", StoreAnswer.BUSY),
    (502, "", StoreAnswer.BUSY),
    (400, "InvalidArgument", StoreAnswer.REFUSED),
    (409, "", StoreAnswer.REFUSED),
]


@pytest.mark.parametrize(("status", "code", "expected"), ANSWERS)
def test_every_refusal_is_told_by_what_a_person_must_do(status: int, code: str, expected: StoreAnswer) -> None:
    assert store_answer(code, status) is expected


@pytest.mark.parametrize("answer", [one for one in StoreAnswer if one not in {StoreAnswer.ABSENT, StoreAnswer.REFUSED}])
def test_what_is_known_comes_with_what_to_do(answer: StoreAnswer) -> None:
    assert advice(answer, "")


def test_only_what_nobody_must_edit_the_job_for_is_tried_again() -> None:
    assert {one for one in StoreAnswer if one.temporary} == {StoreAnswer.CLOCK, StoreAnswer.FULL, StoreAnswer.BUSY}


def test_the_buckets_region_is_named_and_no_other_text_of_a_server_is() -> None:
    assert "another region (eu-west-1)" in advice(StoreAnswer.REGION, "", region="eu-west-1")
    assert "<" not in advice(StoreAnswer.REGION, "", region="<script>")


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("https://s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://s3-eu-central-1.amazonaws.com", "eu-central-1"),
        ("https://s3.dualstack.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("https://s3.amazonaws.com", "us-east-1"),
        ("http://store.example:8333", "us-east-1"),
        ("", "us-east-1"),
    ],
)
def test_an_endpoint_of_a_region_is_signed_for_it(endpoint: str, region: str) -> None:
    assert region_of(endpoint) == region
