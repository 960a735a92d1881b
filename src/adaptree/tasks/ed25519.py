"""Ed25519 through the package cryptography, an extra: `adaptree.tasks.signing` imports this where it is needed."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


def generate() -> tuple[bytes, bytes]:
    """Return a new private key in PEM, and its public key."""
    private = Ed25519PrivateKey.generate()
    text = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text, private.public_key().public_bytes_raw()


def sign(pem: bytes, message: bytes) -> tuple[bytes, bytes]:
    """Return the public key of a private one, and its signature; raise ValueError for a key of another kind."""
    try:
        private = load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ValueError("not a key of Ed25519")
    return private.public_key().public_bytes_raw(), private.sign(message)


def verify(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a signature is one by this key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True
