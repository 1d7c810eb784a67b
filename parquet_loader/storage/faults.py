"""What an error of a client tells: whether another attempt may mend it, and what to say of it."""

from __future__ import annotations

from .secrets import WEB, causes

__all__ = ["http_status", "is_expired", "is_not_there", "is_unreachable", "lacks_credentials", "may_pass"]

# Faults that another attempt does not mend.
_PERMANENT = (
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_PASSING = (408, 409, 425, 429)  # of the statuses that tell a client that it is at fault
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
# That nothing listens, no name is known, or what listens speaks another protocol.
_NO_CONNECTION = (
    *("ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorSSLError", "ClientConnectorCertificateError"),
    *(
        "EndpointConnectionError",
        "ConnectTimeoutError",
        "ConnectionTimeoutError",
        "SSLError",
        "SSLCertVerificationError",
    ),
    *("ConnectionRefusedError", "gaierror"),
)
_NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoAuthTokenError")


def may_pass(error: BaseException, status: int | None) -> bool:
    """Whether another attempt may mend an error, of an answer with this status if there was one."""
    if isinstance(error, _PERMANENT):
        return False
    return status is None or not 400 <= status < 500 or status in _PASSING


def is_unreachable(error: BaseException) -> bool:
    """Whether nothing answered at all."""
    return any(type(link).__name__ in _NO_CONNECTION for link in causes(error))


def lacks_credentials(error: BaseException) -> bool:
    """Whether the client found no credentials, or only some of them."""
    return type(error).__name__ in _NO_CREDENTIALS


def is_expired(error: BaseException) -> bool:
    """Whether credentials have expired, so that fresh ones may do."""
    return error_code(error) in _EXPIRED


def http_status(error: BaseException) -> int | None:
    """The status of the answer that an error tells of, if it does: botocore's, or aiohttp's."""
    for link in causes(error):
        response = getattr(link, "response", None)
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
        status = status or getattr(link, "status", None)
        if isinstance(status, int):
            return status
    return None


def error_code(error: BaseException) -> str:
    """S3's code of an error, or ""."""
    for link in causes(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""


def is_not_there(error: FileNotFoundError, scheme: str) -> bool:
    """Whether an error says that there is no such file; of the web, fsspec says that of any fault."""
    return scheme not in WEB or error.__cause__ is None or http_status(error) in (404, 410)
