"""TLS over loopback: an echo server on a given context, and a client as strict as can be."""

import contextlib
import socket
import ssl
import threading


@contextlib.contextmanager
def serving(context: ssl.SSLContext):
    """Serve one-line echoes on 127.0.0.1 with `context`, and give the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections = []

    def answer(plain: socket.socket) -> None:
        # A client that refuses the certificate ends the handshake here; that is its test's business.
        with contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as tls:
            while line := tls.recv(1024):
                tls.sendall(line)
        plain.close()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = listener.accept()
                thread = threading.Thread(target=answer, args=(plain,))
                connections.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        listener.close()
        for thread in connections:
            thread.join()


def strict_client(ca_pem: bytes, *, alpn: tuple[str, ...] = ("h2", "http/1.1")) -> ssl.SSLContext:
    """Return a client context that trusts `ca_pem` only, and takes RFC 5280 at its word."""
    context = ssl.create_default_context(cadata=ca_pem.decode())
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.set_alpn_protocols(list(alpn))
    return context


@contextlib.contextmanager
def connected(port: int, client: ssl.SSLContext, server_name: str = "localhost"):
    """Give an open connection to `serving`, its peer verified as `server_name`."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        client.wrap_socket(plain, server_hostname=server_name) as tls,
    ):
        yield tls


def shown_serial(port: int, client: ssl.SSLContext, server_name: str = "localhost") -> int:
    """Return the serial number that a new handshake shows."""
    with connected(port, client, server_name) as tls:
        return int(tls.getpeercert()["serialNumber"], 16)


def echoed(tls: ssl.SSLSocket, line: bytes) -> bytes:
    """Send a line over an open connection, and return what comes back."""
    tls.sendall(line)
    return tls.recv(1024)
