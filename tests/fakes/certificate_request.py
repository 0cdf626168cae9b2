"""A request for a node's certificate, of a key that nobody has."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

REQUEST = (
    x509.CertificateSigningRequestBuilder()
    .subject_name(x509.Name([]))
    .add_extension(x509.SubjectAlternativeName([x509.DNSName("box-1")]), critical=False)
    .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    .public_bytes(serialization.Encoding.PEM)
    .decode()
)
