"""The webhook that people are told through: one POST, with a deadline, to one address that is a secret."""

import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import aiohttp
from pydantic import SecretStr

from trimtab_operator.errors import WebhookRefused, WebhookUnavailable

TIMEOUT_SECONDS = 10.0
"""For a whole request, from looking up the name to the first line of the answer."""
MAX_RETRY_AFTER = 300.0

_LATER = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})


class HttpWebhook:
    """See `ports.Webhook`. Whoever knows the address may post there: it is in no error, and no redirect is followed."""

    def __init__(self, url: SecretStr, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._url = url
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: Mapping[str, Any]) -> None:
        """See `ports.Webhook.post`."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=self._timeout)
        headers = {"Idempotency-Key": str(body.get("id", ""))}
        try:
            # A redirect would carry the notice to where somebody else says.
            async with self._session.post(
                self._url.get_secret_value(), json=body, headers=headers, allow_redirects=False
            ) as answer:
                _judge(answer.status, answer.headers.get("Retry-After", ""))
        except TimeoutError:
            message = f"the webhook did not answer within {self._timeout.total:g} s"
            raise WebhookUnavailable(message) from None
        except (aiohttp.ClientError, OSError, UnicodeError) as error:
            # Not its text, and no cause: both may hold the address. A name with an empty part cannot even be looked up.
            message = f"the webhook cannot be reached ({type(error).__name__})"
            raise WebhookUnavailable(message) from None

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()


def _judge(status: int, retry_after: str) -> None:
    if 200 <= status < 300:
        return
    if status in _LATER or status >= 500:
        message = f"the webhook answers with status {status}"
        raise WebhookUnavailable(message, _seconds(retry_after))
    kind = "redirects, which is not followed," if 300 <= status < 400 else "refuses"
    message = f"the webhook {kind} with status {status}: correct its address in the operator's Secret"
    raise WebhookRefused(message)


def _seconds(retry_after: str) -> float:
    """The header's seconds; one that is a date asks for nothing, as clocks differ."""
    try:
        seconds = float(retry_after)
    except ValueError:
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER) if math.isfinite(seconds) else 0.0
