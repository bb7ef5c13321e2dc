"""TLS in front of the site as a deployment has it: nginx, with a certificate of a private authority made here."""

from __future__ import annotations

import datetime
import ipaddress
import shutil
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.lab.namespaces import Namespace
from tests.lab.processes import Process, environment, free_port

# The beginning of an nginx.conf whose every file lies in `folder`; the http block stays open.
PREFACE = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
"""
_CONFIGURATION = (
    PREFACE
    + """  map $http_upgrade $connection_upgrade {{ default upgrade; '' ''; }}
  server {{
    listen {address}:{port} ssl;
    ssl_certificate {folder}/server.pem; ssl_certificate_key {folder}/server.key;
    client_max_body_size 8m;
    location / {{
      proxy_pass http://127.0.0.1:{upstream};
      proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 3600s; proxy_send_timeout 3600s;
      proxy_set_header Host $http_host; proxy_set_header Upgrade $http_upgrade;
      proxy_set_header Connection $connection_upgrade;
      proxy_set_header X-Forwarded-Proto https; proxy_set_header X-Forwarded-For $remote_addr;
    }}
  }}
}}
"""
)


class Terminator:
    """`https://<address>:<port>` before a port of the same machine. `ca_file` is what clients must trust."""

    def __init__(
        self,
        folder: Path,
        upstream: int,
        port: int | None = None,
        address: str = "127.0.0.1",
        namespace: Namespace | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.upstream, self.port = folder, upstream, port or free_port()
        self.address, self._namespace = address, namespace
        self.ca_file = folder / "ca.pem"
        self.url = f"https://{address}:{self.port}"

    def __enter__(self) -> Terminator:
        make_certificates(self.folder, self.address)
        configuration = self.folder / "nginx.conf"
        configuration.write_text(
            _CONFIGURATION.format(folder=self.folder, address=self.address, port=self.port, upstream=self.upstream)
        )
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        arguments = [nginx, "-c", str(configuration), "-p", str(self.folder)]
        self.process = Process(arguments, environment(), namespace=self._namespace)
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.stop()


def make_certificates(folder: Path, address: str = "127.0.0.1") -> None:
    """ca.pem, and server.pem with server.key for the address and localhost, signed by it; valid for a day."""
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("Meshnet test authority", authority_key, authority_key, "Meshnet test authority", ca=True)
    server = _certificate(address, server_key, authority_key, "Meshnet test authority", ca=False)
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(server.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: str,
    *,
    ca: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not ca:
        names = [x509.IPAddress(ipaddress.ip_address(subject)), x509.DNSName("localhost")]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())
