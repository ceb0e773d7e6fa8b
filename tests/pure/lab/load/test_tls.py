"""HTTPS: the load and the probe behind a small proxy that ends TLS before the mock, under a path of its own."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fakes.lab.loads import every, load, target_of

from paceline.contracts.slo import Outcome
from paceline.errors import ConfigError, LabError
from paceline.lab.load import probe
from paceline.lab.mock import MockServer

SUBJECT = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed one for this run, with its key in the same folder."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = ("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *SUBJECT, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem"


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, prefix: bytes) -> None:
    """Without the prefix of the path, where a request line has it."""
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data.replace(b" " + prefix + b"/", b" /", 1))
            await writer.drain()
    with suppress(ConnectionError):
        writer.close()


@contextmanager
def tls_proxy(to_url: str, certificate: Path, prefix: str) -> Iterator[int]:
    """Its port."""
    ready, over, ports = threading.Event(), threading.Event(), []
    where = urlsplit(to_url)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(where.hostname, where.port)
        await asyncio.gather(_pass_on(reader, back, prefix.encode()), _pass_on(there, writer, b"\0"))

    async def serve() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("key.pem"))
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        await asyncio.to_thread(over.wait)
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert ready.wait(30)
        yield ports[0]
    finally:
        over.set()
        thread.join(30)


def test_a_load_over_tls_behind_a_path(certificate: Path):
    with MockServer() as mock, tls_proxy(mock.url, certificate, "/team/a") as port:
        url = f"https://localhost:{port}/team/a/v1"
        target = asyncio.run(probe(url, ca_file=str(certificate)))
        result = load(url, every(0.02, 4), target=target)
        distrusted = load(url, every(0.02, 1), target=target_of(url))
        unchecked = load(url, every(0.02, 1), target=target_of(url, verify_tls=False))
    assert target.info.kind == "paceline"
    assert target.info.url == f"https://localhost:{port}/team/a"
    assert {record.outcome for record in result.records} == {Outcome.OK}
    assert distrusted.records[0].outcome is Outcome.HTTP_ERROR  # nobody vouches for it
    assert distrusted.records[0].reason.startswith("connect: ")
    assert unchecked.records[0].outcome is Outcome.OK


def test_a_certificate_that_nobody_vouches_for_is_refused_by_the_probe(certificate: Path):
    with MockServer() as mock, tls_proxy(mock.url, certificate, "/x") as port, pytest.raises(LabError):
        asyncio.run(probe(f"https://localhost:{port}/x"))


def test_a_file_of_certificates_that_is_not_there():
    with pytest.raises(ConfigError):
        asyncio.run(probe("https://localhost:1", ca_file="/nowhere/at/all.pem"))
