"""Everything that can break, as exceptions. A refused pod is a value (`admission.Decision`), never one of these.

HamiQuotaError
|-- ReviewError            a request body that is not an AdmissionReview we can read: HTTP 400
|-- Undecided              a review we may not decide now (not synced, stale, out of time): HTTP 503
|-- DecodeError            bad input; also a ValueError, names the field, the value and what is accepted
|   |-- QuantityError      a text that is no Kubernetes quantity
|   |-- DeviceConfigError  a device configuration we must not start with
|   `-- InvalidAllocation  an allocation annotation that does not decode
|-- SettingsError          flags or environment that contradict each other
`-- ApiServerError         the API server answered with an error, or not at all
"""


class HamiQuotaError(Exception):
    """Base of every error this package raises on purpose."""


class ReviewError(HamiQuotaError):
    """The body of a request is not an AdmissionReview that can be read."""


class Undecided(HamiQuotaError):  # noqa: N818 - the design's word for this state; it is not a fault
    """No decision can be given now; the webhook configuration's failurePolicy decides."""


class DecodeError(HamiQuotaError, ValueError):
    """Input that cannot be used.

    Args:
        field: Path of the field, such as `spec.containers[0].resources.limits`.
        problem: What is wrong and what is accepted, in one sentence.
    """

    def __init__(self, field: str, problem: str) -> None:
        self.field = field
        self.problem = problem
        super().__init__(f"{field}: {problem}" if field else problem)


class QuantityError(DecodeError):
    """A text that Kubernetes would not parse as a quantity."""


class DeviceConfigError(DecodeError):
    """A device configuration that must stop the start, naming line and key."""


class InvalidAllocation(DecodeError):  # noqa: N818 - the name of the state in the design
    """An allocation annotation that does not decode."""


class SettingsError(HamiQuotaError):
    """Flags or environment variables that are wrong or contradict each other."""


class ApiServerError(HamiQuotaError):
    """The API server refused a request, or could not be reached.

    Args:
        status: The HTTP status; 0 when there was no answer.
        reason: The server's short reason, or what went wrong below HTTP. Response bodies are trimmed.
        retry_after_s: Seconds the server asked us to wait, if it did.
    """

    def __init__(self, status: int, reason: str, retry_after_s: float | None = None) -> None:
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s
        super().__init__(f"{status} {reason}" if status else reason)
