"""Issues, serves and rotates the certificate of an admission webhook.

`authority` is pure: it makes a CA and a serving pair for `names`, and says when one is due for renewal.
`directory` keeps them on disk and issues what is due. `source` serves them from one TLS context that follows
every renewal without dropping a connection.

This package knows nothing of quotas, and its repository never holds a key.
"""

from certs.authority import CertificateError, KeyPair, Lifetimes, Renewal, needs_renewal
from certs.directory import Issued, Kept, ensure_pair, write_pair
from certs.names import Names
from certs.source import CertificateSource, Failed, Reloaded, Unchanged

__all__ = [
    "CertificateError",
    "CertificateSource",
    "Failed",
    "Issued",
    "Kept",
    "KeyPair",
    "Lifetimes",
    "Names",
    "Reloaded",
    "Renewal",
    "Unchanged",
    "ensure_pair",
    "needs_renewal",
    "write_pair",
]
