"""What an S3 server means by refusing a request: one table for trainer, operator and command line. Pure."""

import re
from collections.abc import Mapping
from enum import StrEnum

DEFAULT_REGION = "us-east-1"

_REGION = re.compile(r"[a-z0-9-]{1,40}")
_REGIONAL_ENDPOINT = re.compile(r"s3[.-](?:dualstack\.|fips\.)?([a-z]{2}(?:-[a-z]+)+-[0-9])\.amazonaws\.com")


class StoreAnswer(StrEnum):
    """Kinds of refusals, by what a person must do."""

    ABSENT = "Absent"
    """There is no such object, or no such upload."""
    NO_BUCKET = "NoBucket"
    CREDENTIALS = "Credentials"
    """The server does not take the credentials for what they are."""
    RIGHTS = "Rights"
    """The credentials may not do this."""
    REGION = "Region"
    """The bucket lies in another region."""
    CLOCK = "Clock"
    """The clocks of the two machines differ too much."""
    FULL = "Full"
    """The store, or what may be stored there, is full."""
    BUSY = "Busy"
    """The server cannot serve now."""
    REFUSED = "Refused"
    """Anything else that the same request cannot change."""

    @property
    def temporary(self) -> bool:
        """Whether the same request may succeed later, without anybody editing the job."""
        return self in {StoreAnswer.CLOCK, StoreAnswer.FULL, StoreAnswer.BUSY}


_BY_CODE: Mapping[str, StoreAnswer] = {
    **dict.fromkeys(("NoSuchKey", "NoSuchUpload", "NotFound", "404"), StoreAnswer.ABSENT),
    "NoSuchBucket": StoreAnswer.NO_BUCKET,
    **dict.fromkeys(
        ("SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "ExpiredToken"), StoreAnswer.CREDENTIALS
    ),
    **dict.fromkeys(
        ("AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidPayer", "NotSignedUp", "403", "401"),
        StoreAnswer.RIGHTS,
    ),
    **dict.fromkeys(
        (
            "PermanentRedirect",
            "TemporaryRedirect",
            "AuthorizationHeaderMalformed",
            "IllegalLocationConstraintException",
            "301",
            "307",
        ),
        StoreAnswer.REGION,
    ),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired"), StoreAnswer.CLOCK),
    **dict.fromkeys(
        (
            "QuotaExceeded",
            "QuotaExceededException",
            "BucketQuotaExceeded",
            "XMinioAdminBucketQuotaExceeded",
            "XMinioStorageFull",
            "InsufficientStorage",
            "StorageFull",
            "507",
        ),
        StoreAnswer.FULL,
    ),
    **dict.fromkeys(
        ("SlowDown", "SlowDownRead", "SlowDownWrite", "RequestTimeout", "Throttling", "TooManyRequests"),
        StoreAnswer.BUSY,
    ),
}

_CREDENTIALS: Mapping[str, str] = {
    "SignatureDoesNotMatch": "the secret key is wrong: it is not the one that belongs to this access key",
    "InvalidAccessKeyId": "the access key is wrong: S3 does not know it",
    "InvalidToken": "the session token is wrong",
    "ExpiredToken": "the session token has expired",
}


def store_answer(code: str, status: int) -> StoreAnswer:
    """What an error code and an HTTP status mean; either may be empty or 0."""
    if code in _BY_CODE:
        return _BY_CODE[code]
    if str(status) in _BY_CODE:
        return _BY_CODE[str(status)]
    return StoreAnswer.BUSY if status >= 500 or status in {408, 429} else StoreAnswer.REFUSED


def advice(answer: StoreAnswer, code: str, *, region: str = "") -> str:
    """What is wrong and what to do, as the end of a sentence; empty where nothing general can be said.

    `region` is the one that the server names as the bucket's; what cannot be one is left out.
    """
    where = f" ({region})" if _REGION.fullmatch(region) else ""
    return {
        StoreAnswer.NO_BUCKET: "the bucket does not exist: create it or correct its name",
        StoreAnswer.CREDENTIALS: _CREDENTIALS.get(code, "the credentials are wrong"),
        StoreAnswer.RIGHTS: "the credentials may not do this: correct them or what they may do",
        StoreAnswer.REGION: f"the bucket lies in another region{where}: name the endpoint of that region",
        StoreAnswer.CLOCK: "its clock and that of this machine differ too much: set the one that is wrong",
        StoreAnswer.FULL: "it has no room left: make room there or raise its quota",
        StoreAnswer.BUSY: "it cannot serve now",
    }.get(answer, "")


def region_of(endpoint: str) -> str:
    """The region that an endpoint of AWS names; other servers take the default one."""
    found = _REGIONAL_ENDPOINT.search(endpoint)
    return found[1] if found else DEFAULT_REGION
