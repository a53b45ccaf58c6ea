# What the attacks inside of a sandbox have in common. It is put in front of every one of them.
import base64, json, os, select, socket, ssl, struct, sys, threading, time

PROXY = ("127.0.0.1", 3128)


def drain(s):
    got = b""
    try:
        while True:
            piece = s.recv(65536)
            if not piece:
                break
            got += piece
    except OSError:
        pass
    return got


def talk(data, to=PROXY, wait=20):
    """Sends bytes and reads what comes until the other side ends."""
    data = data.encode("latin-1") if isinstance(data, str) else data
    try:
        with socket.create_connection(to, timeout=wait) as s:
            s.sendall(data)
            return drain(s).decode("latin-1")
    except OSError as error:
        return f"error: {error}"


def get(url, host=None, more="", method="GET"):
    """A request to the proxy as a client makes it, with whatever the attack adds."""
    host = host if host is not None else url.split("//", 1)[-1].split("/", 1)[0]
    head = f"{method} {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n"
    return show(talk(head))


def tunnel(authority, more="", wait=20):
    """Opens a tunnel. The socket, or nothing when it was refused."""
    s = socket.create_connection(PROXY, timeout=wait)
    s.sendall(f"CONNECT {authority} HTTP/1.1\r\n{more}\r\n".encode("latin-1"))
    head = b""
    while b"\r\n\r\n" not in head:
        piece = s.recv(1)
        if not piece:
            break
        head += piece
    if b" 200 " in head.split(b"\r\n")[0]:
        return s
    show((head + drain(s)).decode("latin-1"))


def through(s, data):
    """Speaks through a tunnel that may not be there."""
    if s is None:
        return ""
    data = data.encode("latin-1") if isinstance(data, str) else data
    try:
        s.sendall(data)
    except OSError:
        pass
    return show(drain(s).decode("latin-1"))


def secure(s, name):
    """TLS as an attacker makes it, who checks nothing."""
    if s is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        return context.wrap_socket(s, server_hostname=name)
    except (OSError, ValueError) as error:
        show(f"tls: {error}")


def socks(kind, address, port, command=1):
    """SOCKS5 to an address of a kind: 1 for IPv4, 3 for a name, 4 for IPv6. The socket, or nothing."""
    s = socket.create_connection(PROXY, timeout=20)
    s.sendall(b"\x05\x01\x00")
    if s.recv(2) != b"\x05\x00":
        return show("socks: no")
    packed = {1: lambda: socket.inet_aton(address), 4: lambda: socket.inet_pton(socket.AF_INET6, address),
              3: lambda: bytes([len(address)]) + address.encode()}[kind]()
    s.sendall(bytes([5, command, 0, kind]) + packed + struct.pack(">H", port))
    reply = s.recv(10)
    if len(reply) > 1 and reply[1] == 0:
        return s
    show(f"socks: refused {reply[1:2]!r}")


def direct(address, port, family=None, data=b"ATTACK"):
    """A connection that knows of no proxy."""
    family = family or (socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        with socket.socket(family, socket.SOCK_STREAM) as s:
            s.settimeout(5)
            s.connect((address, port))
            s.sendall(data)
            return show(drain(s).decode("latin-1"))
    except OSError as error:
        return show(f"error: {error}")


def ask(name, kind=1, to=("127.0.0.1", 53), wait=5):
    """Asks a name server, without help of the C library. The code, and the addresses."""
    labels = b"".join(bytes([len(part)]) + part for part in name.encode("latin-1").split(b"."))
    query = struct.pack(">6H", 77, 0x100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(wait)
        try:
            s.sendto(query, to)
            reply = s.recv(4096)
        except OSError as error:
            show(f"error: {error}")
            return None, []
    code, count = reply[3] & 15, struct.unpack(">H", reply[6:8])[0]
    return code, [socket.inet_ntoa(reply[-4:])] if count and kind == 1 else []


def attempt(what, *arguments):
    """Calls what may be forbidden. Says what came of it."""
    try:
        return show(what(*arguments))
    except (OSError, ValueError) as error:
        return show(f"error: {error}")


def show(text):
    print(text)
    return text

