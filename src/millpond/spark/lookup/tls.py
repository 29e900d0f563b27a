"""TLS for the servers of a query (`tls_server`), each with a certificate of its own.

There is no certificate authority. A client trusts only the certificate that the query's plan names, or the directory
that the plan names. Its private key stays in the server's process, for as long as that runs. So only that process can
answer, and nobody else can read or alter what it sends.

Source: RFC 8446, "The Transport Layer Security (TLS) Protocol Version 1.3".
"""

import datetime as dt
import ssl
import tempfile
from typing import TYPE_CHECKING

from millpond.errors import MissingDependencyError
from millpond.spark.environment.folders import user_folder

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

_NAME = "millpond lookup table"
_FIRST_DAY = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_LAST_DAY = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
"""The certificate never expires, so differing clocks do no harm. It becomes useless when its server ends."""


def server_context() -> tuple[ssl.SSLContext, str]:
    """Return a server's TLS context with a new certificate, and the certificate as PEM.

    Raises:
        MissingDependencyError: `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise MissingDependencyError(
            "lookup tables travel between driver and executors over TLS, which needs cryptography. "
            'Run: pip install "millpond[spark]"'
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _self_signed(key).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The standard library reads a key only from a file. Only this user can read it, and it is removed at once.
    with tempfile.NamedTemporaryFile(dir=user_folder()) as file:
        file.write(certificate + secret)
        file.flush()
        context.load_cert_chain(file.name)
    return context, certificate.decode()


def client_context(certificate: str) -> ssl.SSLContext:
    """Return a worker's TLS context, which accepts only the server of this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The certificate itself is trusted, whatever the name of its server's host.
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


def _self_signed(key: "EllipticCurvePrivateKey") -> "Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FIRST_DAY, _LAST_DAY)
    return builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).sign(
        key, hashes.SHA256()
    )
