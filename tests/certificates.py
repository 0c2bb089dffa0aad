"""Certificates for tests, and a folder that is replaced like a mounted Secret of Kubernetes."""

import ipaddress
import itertools
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
SERVER_USE, CLIENT_USE = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
NAMES = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: Key

    @cached_property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @cached_property
    def key_pem(self) -> bytes:
        return self.encode_key(NoEncryption())

    def encode_key(self, encryption: KeySerializationEncryption) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)

    @property
    def encrypted_key_pem(self) -> bytes:
        return self.encode_key(BestAvailableEncryption(b"password"))

    @property
    def serial(self) -> str:
        """The serial number as `getpeercert` formats it."""
        digits = f"{self.certificate.serial_number:X}"
        return digits.zfill(len(digits) + len(digits) % 2)

    def issue(
        self,
        name: str,
        *,
        days: float = 30,
        age_days: float = 10,
        is_ca: bool = False,
        use: ObjectIdentifier = SERVER_USE,
        key: Key | None = None,
    ) -> "Identity":
        """Return a certificate signed by this one, valid from `age_days` ago until `days` from now."""
        subject_key = key or ec.generate_private_key(ec.SECP256R1())
        return _sign(self, name, subject_key, days=days, age_days=age_days, use=None if is_ca else use)

    @classmethod
    def make_ca(cls, name: str, *, days: float = 300) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        signed = _sign(None, name, key, days=days, age_days=10, use=None)
        return cls(signed.certificate, signed.key)


def _sign(
    issuer: Identity | None, name: str, key: Key, *, days: float, age_days: float, use: ObjectIdentifier | None
) -> Identity:
    """Sign a certificate; without an issuer, it is self-signed. `use` None makes it a CA."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signing_key = key if issuer is None else issuer.key
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=age_days))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(use is None, None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key()), critical=False)
    )
    if use is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(NAMES), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
    algorithm = None if isinstance(signing_key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return Identity(builder.sign(signing_key, algorithm), key)


class Secret:
    """Files behind a symbolic link to their folder, which one rename replaces, like a Secret mounted by the kubelet."""

    def __init__(self, folder: Path, **files: bytes) -> None:
        self._folder = folder
        self._versions = itertools.count()
        folder.mkdir(parents=True, exist_ok=True)
        self.write(**files)
        for name in files:
            (folder / name).symlink_to(f"..data/{name}")

    def path(self, name: str) -> Path:
        return self._folder / name

    def write(self, **files: bytes) -> None:
        """Replace all files at once."""
        version = self._folder / f"..{next(self._versions)}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
            (version / name).chmod(0o440)
        link = self._folder / "..data_tmp"
        link.symlink_to(version.name)
        os.replace(link, self._folder / "..data")


def client_context(
    ca: Identity, folder: Path, identity: Identity | None = None, version: ssl.TLSVersion | None = None
) -> ssl.SSLContext:
    """Return a client's context. `folder` gets the files that OpenSSL needs."""
    context = ssl.create_default_context(cadata=ca.pem.decode())
    if identity is not None:
        pair = folder / f"{identity.serial}.pem"
        pair.write_bytes(identity.pem + identity.key_pem)
        context.load_cert_chain(pair)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context
