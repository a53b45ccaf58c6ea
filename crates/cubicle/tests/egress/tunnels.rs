//! What can be put into a tunnel, and where tunnels can be made to lead.

use crate::inside::Attack;
use crate::world::in_a_world;

#[test]
fn a_tunnel_leads_to_the_host_it_was_opened_for_and_speaks_what_is_allowed_there() {
    in_a_world(|world| world.sandbox("allow origin.test; allow *.wild.test").withstands(&ATTACKS));
}

const ATTACKS: [Attack; 22] = [
    Attack {
        name: "ssh_does_not_pass_through_a_tunnel_for_the_web",
        program: r#"
through(tunnel("origin.test:443"), "SSH-2.0-ATTACK\r\n")
through(tunnel("origin.test:80"), "SSH-2.0-ATTACK\r\n")
"#,
        denied: "other protocol",
    },
    Attack {
        name: "mail_does_not_pass_through_a_tunnel_for_the_web",
        program: r#"
for port in (80, 443):
    through(tunnel(f"origin.test:{port}"), "EHLO ATTACK\r\nMAIL FROM:<a@b>\r\n")
"#,
        denied: "other protocol",
    },
    Attack {
        name: "ssh_does_not_pass_through_socks",
        program: r#"
through(socks(3, "origin.test", 443), "SSH-2.0-ATTACK\r\n")
through(socks(3, "origin.test", 80), "SSH-2.0-ATTACK\r\n")
"#,
        denied: "other protocol",
    },
    Attack {
        name: "ssh_does_not_pass_by_the_address_of_a_name",
        program: r#"
code, addresses = ask("origin.test")
for port in (80, 443):
    direct(addresses[0], port, data=b"SSH-2.0-ATTACK\r\n")
direct(addresses[0], 22)
"#,
        denied: "other protocol",
    },
    Attack {
        name: "a_tunnel_is_not_opened_to_a_port_that_is_not_allowed",
        program: r#"
for port in (22, 25, 7000, 8080, 8443):
    through(tunnel(f"origin.test:{port}"), "ATTACK")
    through(socks(3, "origin.test", port), "ATTACK")
"#,
        denied: "origin.test:22",
    },
    Attack {
        name: "the_host_header_of_a_tunnel_cannot_name_another",
        program: r#"
through(tunnel("origin.test:443", "Host: evil.test:443\r\n"), "ATTACK")
through(tunnel("origin.test:443", "Host: origin.test:443\r\nHost: evil.test:443\r\n"), "ATTACK")
through(tunnel("evil.test:443", "Host: origin.test:443\r\n"), "ATTACK")
"#,
        denied: "Host header mismatch",
    },
    Attack {
        name: "tls_cannot_ask_for_another_name_than_the_tunnel",
        program: r#"
for name in ("evil.test", "api.test", "origin.test.evil.test", "xorigin.test"):
    through(secure(tunnel("origin.test:443"), name), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "TLS name mismatch",
    },
    Attack {
        name: "tls_without_a_name_is_refused_where_a_name_was_allowed",
        program: r#"
through(secure(tunnel("origin.test:443"), None), "GET /ATTACK HTTP/1.0\r\n\r\n")
through(secure(socks(3, "origin.test", 443), None), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "TLS name mismatch",
    },
    Attack {
        name: "a_hello_in_pieces_hides_no_name",
        program: r#"
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
client = context.wrap_bio(incoming, outgoing, server_hostname="evil.test")
try:
    client.do_handshake()
except ssl.SSLWantReadError:
    pass
hello = outgoing.read()
s = tunnel("origin.test:443")
s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for at in range(len(hello)):
    try:
        s.sendall(hello[at:at + 1])
    except OSError:
        break
show(repr(drain(s)))
# The same in records of a few bytes each.
body, s = hello[5:], tunnel("origin.test:443")
pieces = [body[at:at + 16] for at in range(0, len(body), 16)]
records = b"".join(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece for piece in pieces)
try:
    s.sendall(records)
except OSError:
    pass
show(repr(drain(s)))
"#,
        denied: "TLS name mismatch",
    },
    Attack {
        name: "the_address_of_an_allowed_host_is_not_allowed_by_its_name",
        program: r#"
for port in (80, 443):
    through(tunnel(f"93.184.216.34:{port}"), "GET /ATTACK HTTP/1.0\r\n\r\n")
    through(tunnel(f"[2606:4700::1]:{port}"), "GET /ATTACK HTTP/1.0\r\n\r\n")
    through(socks(1, "93.184.216.34", port), "GET /ATTACK HTTP/1.0\r\n\r\n")
    through(socks(4, "2606:4700::1", port), "GET /ATTACK HTTP/1.0\r\n\r\n")
    through(secure(tunnel("93.184.216.34:443"), "origin.test"), "GET /ATTACK HTTP/1.0\r\n\r\n")
get("http://93.184.216.34/ATTACK", host="origin.test")
get("http://93.184.216.34/ATTACK")
"#,
        denied: "93.184.216.34:443",
    },
    Attack {
        name: "a_request_in_a_tunnel_cannot_be_for_another_host",
        program: r#"
through(tunnel("origin.test:80"), "GET /ATTACK HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")
through(tunnel("origin.test:80"), "GET http://evil.test/ATTACK HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n")
through(tunnel("origin.test:80"), "GET /ATTACK HTTP/1.1\r\nHost: origin.test\r\nHost: evil.test\r\n\r\n")
through(tunnel("origin.test:80"), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "Host header mismatch",
    },
    Attack {
        name: "a_later_request_of_a_tunnel_is_looked_at_as_the_first",
        program: r#"
s = tunnel("origin.test:80")
s.sendall(b"GET /first HTTP/1.1\r\nHost: origin.test\r\n\r\n")
first = b""
while b"GET /first" not in first:
    first += s.recv(4096)
through(s, "GET /ATTACK HTTP/1.1\r\nHost: evil.test\r\nConnection: close\r\n\r\n")
"#,
        denied: "Host header mismatch",
    },
    Attack {
        name: "http_2_is_not_spoken_by_prior_knowledge",
        program: r#"
preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
request = b"\0\0\x06\x01\x05\0\0\0\x01ATTACK"
show(talk(preface + request))
through(tunnel("origin.test:80"), preface + request)
through(tunnel("origin.test:443"), preface + request)
"#,
        denied: "other protocol",
    },
    Attack {
        name: "an_offer_of_plain_http_2_is_not_passed_on",
        program: r#"
more = "Upgrade: h2c\r\nHTTP2-Settings: QVRUQUNL\r\nX-Attack: no\r\n"
answer = talk("GET http://origin.test/echo HTTP/1.1\r\nHost: origin.test\r\nConnection: close, Upgrade, HTTP2-Settings\r\n" + more + "\r\n")
assert " 500 Broken" in answer or " 500 " in answer, answer
seen = answer.lower()
print("REACHED" if "upgrade" in seen or "http2-settings" in seen or " 101 " in seen else "not passed on")
"#,
        denied: "",
    },
    Attack {
        name: "another_protocol_is_not_switched_to",
        program: r#"
for protocol in ("TLS/1.2", "connect-udp", "h2c, websocket", "ATTACK"):
    show(talk(f"GET http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\nConnection: Upgrade\r\nUpgrade: {protocol}\r\n\r\n"))
"#,
        denied: "upgrade",
    },
    Attack {
        name: "a_tunnel_is_not_opened_behind_a_request",
        program: r#"
show(talk("GET http://origin.test/x HTTP/1.1\r\nHost: origin.test\r\n\r\n"
          "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\nATTACK").replace("REACHED GET /x", "the first"))
"#,
        denied: "CONNECT",
    },
    Attack {
        name: "a_tunnel_does_not_lead_back_to_the_gateway",
        program: r#"
inner = "CONNECT evil.test:443 HTTP/1.1\r\n\r\nATTACK"
for target in ("127.0.0.1:3128", "localhost:3128", "[::1]:3128", "127.0.0.1:53", "proxy.egress.internal:3128"):
    through(tunnel(target), inner)
get("http://127.0.0.1:3128/ATTACK")
get("http://localhost:3128/http://evil.test/ATTACK")
"#,
        denied: "127.0.0.1:3128",
    },
    Attack {
        name: "socks_makes_connections_and_nothing_else",
        program: r#"
for command in (2, 3, 0, 9):
    s = socks(3, "origin.test", 80, command)
    print("REACHED" if s else "refused")
show(repr(talk(b"\x04\x01" + struct.pack(">H", 80) + socket.inet_aton("93.184.216.34") + b"ATTACK\0")))
show(repr(talk(b"\x04\x01\0\x50\0\0\0\x01ATTACK\0origin.test\0")))
show(repr(talk(b"\x05\x01\x02\x01\x01u\x01p\x05\x01\0\x03\x09evil.test\0\x50ATTACK")))
"#,
        denied: "",
    },
    Attack {
        name: "a_name_for_socks_cannot_hide_another",
        program: r#"
for name in ("evil.test", "origin.test\0.evil.test", "origin.test@evil.test", "evil.test#origin.test", "origin.test/evil.test",
             "evil.test%00.origin.test", "93.184.216.35", "0x5db8d823", "1572395043", " origin.test", "origin.test\nevil.test"):
    through(socks(3, name, 80), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "evil.test:80",
    },
    Attack {
        name: "the_target_of_a_tunnel_has_one_meaning",
        program: r#"
for target in ("origin.test:443@evil.test:443", "evil.test:443#origin.test:443", "origin.test:443/evil.test", "//evil.test:443",
               "http://evil.test:443", "origin.test:443:443", "origin.test:+443", "origin.test:0443 ", "origin.test:", ":443",
               "origin.test:65979", "[origin.test]:443", "evil.test\\:443", "origin.test%2eevil.test:443", "o\xaarigin.test:443"):
    through(tunnel(target), "ATTACK")
"#,
        denied: "not a host",
    },
    Attack {
        name: "a_tunnel_has_no_body_and_no_second_head",
        program: r#"
through(tunnel("origin.test:443", "Content-Length: 6\r\n"), "ATTACK")
through(tunnel("origin.test:443", "Transfer-Encoding: chunked\r\n"), "6\r\nATTACK\r\n0\r\n\r\n")
show(talk("CONNECT origin.test:443 HTTP/1.1\r\nX: y\r\n\x00: ATTACK\r\n\r\n"))
show(talk("CONNECT origin.test:443 HTTP/3.0\r\n\r\nATTACK"))
show(talk("CONNECT origin.test:443 evil.test:443 HTTP/1.1\r\n\r\nATTACK"))
"#,
        denied: "ambiguous framing",
    },
    Attack {
        name: "names_below_a_wildcard_are_not_the_domain_itself",
        program: r#"
for host in ("wild.test", "wild.test.evil.test", "xwild.test", "a.wild.test.", "evil.test"):
    if host != "a.wild.test.":
        through(tunnel(f"{host}:443"), "ATTACK")
        get(f"http://{host}/ATTACK")
"#,
        denied: "wild.test.evil.test",
    },
];
