//! Tokens of an identity provider: who they stand for, what they open, and what becomes of the others.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::client::{Reply, Server, With, eventually};
use crate::issuer::{Issuer, SigningKey, changed, claims, seconds};

fn key(id: &str, algorithm: &'static str) -> SigningKey {
    SigningKey::new(id, algorithm).expect("no program is needed for such a key")
}

/// A server that accepts tokens of this issuer for the audience `cubicle`.
fn server_of(issuer: &Issuer) -> Option<Server> {
    Server::start_with(&["--pool-size", "1", "--token-issuer", &issuer.name(), "--token-audience", "cubicle"])
}

/// The same with these lines in its configuration file.
fn server_with(issuer: &Issuer, lines: &str) -> Option<(Server, tempfile::TempDir)> {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let file = directory.path().join("cubicle.toml");
    let text = format!("[server]\ntoken_issuer = '{}'\npool_size = 1\n{lines}\n", issuer.name());
    std::fs::write(&file, text).expect("the file can be written");
    let server = Server::start_with(&["--config", &file.display().to_string()])?;
    Some((server, directory))
}

fn who_am_i(server: &Server, token: &str) -> Reply {
    server.with_key("GET", "/api/v1/whoami", &json!({}), token)
}

/// The message of a token that must be refused with 401.
fn refusal(server: &Server, token: &str) -> String {
    let refused = who_am_i(server, token);
    assert_eq!(refused.refused(401), "unauthenticated");
    let error = refused.json()["error"].clone();
    assert!(error["hint"].is_string(), "{error}");
    let challenge = refused.header("www-authenticate");
    assert!(challenge.starts_with("Bearer error=\"invalid_token\", error_description=\""), "{challenge}");
    error["message"].as_str().expect("a message").to_owned()
}

#[test]
fn a_token_of_the_issuer_opens_what_its_scopes_say_and_the_log_names_its_subject() {
    let mut keys = Vec::new();
    for algorithm in ["RS256", "PS256", "ES256", "ES384", "EdDSA"] {
        match SigningKey::new(&algorithm.to_lowercase(), algorithm) {
            Some(key) => keys.push(key),
            None => {
                let test = std::thread::current().name().unwrap_or("a test").to_owned();
                _ = writeln!(std::io::stderr(), "skipped: {test}: {algorithm} needs openssl");
            }
        }
    }
    let issuer = Issuer::start(&keys.iter().collect::<Vec<_>>());
    let Some(server) = server_of(&issuer) else { return };
    for key in &keys {
        let me = who_am_i(&server, &key.sign(&claims(&issuer.name(), "ada"))).ok();
        assert_eq!((&me["tenant"], &me["user"]), (&json!("default"), &json!("ada")), "{}", key.algorithm);
        assert_eq!(me["scopes"], json!(["read", "run"]));
        assert_eq!((&me["key_id"], &me["token"]["issuer"]), (&Value::Null, &json!(issuer.name())));
        assert!(me["token"]["expires_at"].is_string(), "{me}");
    }
    let key = &keys[keys.len() - 1];
    let token = |scope: &str| key.sign(&changed(&claims(&issuer.name(), "ada"), &json!({ "scope": scope })));

    let exec =
        server.with_key("POST", "/api/v1/execs", &json!({ "command": "echo hi" }), &token("cubicle:run"));
    let exec = exec.ok();
    let entries = server.get("/api/v1/audit?action=exec.create&actor=ada").ok();
    let entry = &entries["items"][0];
    assert_eq!((&entry["subject"], &entry["key"]), (&exec["exec_id"], &Value::Null), "{entries}");

    let reader = token("openid cubicle:read");
    assert_eq!(server.with_key("GET", "/api/v1/leases", &json!({}), &reader).status, 200);
    let refused = server.with_key("POST", "/api/v1/leases", &json!({}), &reader);
    assert_eq!(refused.refused(403), "denied");
    assert_eq!(refused.json()["error"]["message"], "this token lacks the scope 'run'");
    for (method, path) in [("GET", "/api/v1/keys"), ("GET", "/api/v1/audit"), ("POST", "/api/v1/tenants")] {
        let body = json!({ "name": "x" });
        for narrow in [&reader, &token("cubicle:run"), &token("")] {
            assert_eq!(
                server.with_key(method, path, &body, narrow).refused(403),
                "denied",
                "{method} {path}"
            );
        }
    }
    let boss = token("cubicle:manage cubicle:read");
    let more = json!({ "label": "x", "scopes": ["admin"] });
    assert_eq!(server.with_key("POST", "/api/v1/keys", &more, &boss).refused(403), "denied");
    let nothing = token("cubicle:fly");
    assert_eq!(server.with_key("GET", "/api/v1/leases", &json!({}), &nothing).refused(403), "denied");
    // The command line takes a token for a key.
    let listed =
        server.host.cubicle(&["--server", &server.address, "--key", &reader, "ps", "--all", "--quiet"]);
    assert_eq!(
        String::from_utf8_lossy(&listed.stdout).trim(),
        exec["exec_id"].as_str().expect("an id"),
        "{listed:?}"
    );
}

#[test]
fn a_token_that_is_not_good_opens_nothing_and_is_told_why() {
    let (good, other) = (key("good", "ES256"), key("good", "ES256"));
    let issuer = Issuer::start(&[&good]);
    let name = issuer.name();
    let flags = ["--pool-size", "1", "--token-issuer", &name, "--token-audience", "cubicle"];
    let talkative = [flags.as_slice(), &["--log", "debug,cubicle_server=trace"]].concat();
    let Some(server) = Server::start_with(&talkative) else { return };
    let own = claims(&name, "ada");
    let with = |changes: Value| good.sign(&changed(&own, &changes));
    who_am_i(&server, &with(json!({}))).ok();
    let now = seconds();
    let unsigned = |algorithm: &str| {
        let header = URL_SAFE_NO_PAD.encode(json!({ "alg": algorithm, "kid": "good" }).to_string());
        format!("{header}.{}.", URL_SAFE_NO_PAD.encode(own.to_string()))
    };
    let (signed, signature) = (with(json!({})), with(json!({ "sub": "eve" })));
    let swapped = format!(
        "{}.{}",
        signed.rsplit_once('.').expect("three parts").0,
        signature.rsplit_once('.').expect("three parts").1
    );
    let table = [
        (with(json!({ "iss": "https://evil.example" })), "not of the issuer"),
        (with(json!({ "iss": null })), "not of the issuer"),
        (with(json!({ "aud": "wiki" })), "not for the audience 'cubicle'"),
        (with(json!({ "aud": null })), "not for the audience 'cubicle'"),
        (with(json!({ "exp": now - 60 })), "expired at 2"),
        (with(json!({ "exp": null })), "has no claim 'exp'"),
        (with(json!({ "nbf": now + 120 })), "not valid before 2"),
        (with(json!({ "sub": null })), "has no claim 'sub'"),
        (with(json!({ "sub": "a\nb" })), "the claim 'sub' of this token cannot be used"),
        (other.sign(&own), "signature of this token is wrong"),
        (swapped, "signature of this token is wrong"),
        (unsigned("none"), "signed by 'none' are not accepted"),
        (unsigned("ES256"), "signature of this token is wrong"),
        (confused(&own, &good.published()), "signed by 'HS256' are not accepted"),
        (good.sign_as(&json!({ "alg": "ES256", "kid": "good", "crit": ["exp"] }), &own), "'crit' header"),
        (good.sign_as(&json!({ "alg": "ES256", "kid": "good", "typ": "logout+jwt" }), &own), "of the type"),
        (
            good.sign_as(&json!({ "alg": "ES256", "kid": "other", "jwk": other.published() }), &own),
            "does not publish",
        ),
        ("eyJ.eyJ.eyJ".into(), "damaged"),
        (format!("{}.x.y", "A".repeat(17_000)), "damaged"),
    ];
    for (token, why) in &table {
        let message = refusal(&server, token);
        assert!(message.contains(why), "'{message}' does not say '{why}'");
    }
    for garbage in ["a.b", "a.b.c.d", "..", "Bearer", "cub_a.b.c="] {
        assert_eq!(who_am_i(&server, garbage).refused(401), "unauthenticated", "{garbage}");
    }
    // Nobody who reads the log can go on with what others sent.
    let log = eventually("the last refusal in the log", || {
        Some(server.said()).filter(|log| log.matches("request not admitted").count() >= table.len())
    });
    for (token, _) in &table {
        let (_, signature) = token.rsplit_once('.').expect("a token has parts");
        assert!(!log.contains(token.as_str()) && (signature.len() < 8 || !log.contains(signature)), "{log}");
    }
    assert!(!log.contains(signed.as_str()), "{log}");
}

/// A token that is signed with the public key as if it were a shared secret.
fn confused(claims: &Value, public: &Value) -> String {
    let header = json!({ "alg": "HS256", "kid": "good" });
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header.to_string()),
        URL_SAFE_NO_PAD.encode(claims.to_string())
    );
    let secret = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, public.to_string().as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(ring::hmac::sign(&secret, signed.as_bytes())))
}

#[test]
fn keys_are_rotated_and_outlive_an_issuer_that_is_down() {
    let (first, second) = (key("first", "ES256"), key("second", "EdDSA"));
    let issuer = Issuer::start(&[&first]);
    let Some(server) = server_of(&issuer) else { return };
    let own = claims(&issuer.name(), "ada");
    let (old, new) = (first.sign(&own), second.sign(&own));
    assert_eq!(who_am_i(&server, &old).ok()["user"], "ada");
    assert_eq!(issuer.asked_for_keys(), 1);

    issuer.publish(&[&second]);
    assert_eq!(who_am_i(&server, &new).ok()["user"], "ada", "the first token with a new key finds it");
    assert_eq!(issuer.asked_for_keys(), 2);
    assert!(refusal(&server, &old).contains("does not publish"), "the old key was withdrawn");

    for number in 0..50 {
        let header = json!({ "alg": "EdDSA", "kid": format!("made-up-{number}") });
        assert!(refusal(&server, &second.sign_as(&header, &own)).contains("does not publish"));
    }
    // At most every ten seconds; this loop has taken less than a minute, and fifty would be one each.
    assert!(issuer.asked_for_keys() < 10, "the issuer was asked {} times", issuer.asked_for_keys());

    let at = issuer.address();
    drop(issuer);
    assert_eq!(who_am_i(&server, &new).ok()["user"], "ada", "its keys are remembered");
    // Whether the issuer has such a key by now cannot be known, so this is not the token's fault.
    let unknown = eventually("a question to the issuer that fails", || {
        Some(who_am_i(&server, &old)).filter(|answer| answer.status != 401)
    });
    assert_eq!(unknown.refused(503), "unavailable");
    assert!(!unknown.header("retry-after").is_empty());
    assert_eq!(who_am_i(&server, &new).ok()["user"], "ada");
    let issuer = Issuer::start_at(at, &[&first]);
    eventually("the keys of an issuer that is back", || {
        (who_am_i(&server, &old).status == 200).then_some(())
    });
    assert!(issuer.asked_for_keys() >= 1);
    assert!(refusal(&server, &new).contains("does not publish"));
}

#[test]
fn a_server_whose_issuer_is_down_starts_and_takes_tokens_when_it_is_back() {
    let key = key("k", "EdDSA");
    let at = Issuer::start(&[&key]).address();
    let name = format!("http://{at}");
    let jwks = format!("{name}/keys");
    let flags =
        ["--pool-size", "1", "--token-issuer", &name, "--jwks-url", &jwks, "--token-audience", "cubicle"];
    let Some(server) = Server::start_with(&flags) else { return };
    let token = key.sign(&claims(&name, "ada"));
    assert_eq!(who_am_i(&server, &token).refused(503), "unavailable");
    assert_eq!(server.get("/api/v1/whoami").ok()["user"], "admin", "keys do not need the issuer");
    assert_eq!(server.get("/ready").ok()["ready"], true);
    let _issuer = Issuer::start_at(at, &[&key]);
    eventually("the keys of an issuer that is there now", || {
        (who_am_i(&server, &token).status == 200).then_some(())
    });
}

#[test]
fn a_token_is_of_the_tenant_that_it_names_and_sees_no_other() {
    let key = key("k", "EdDSA");
    let issuer = Issuer::start(&[&key]);
    let lines = "token_audience = 'cubicle'\ntoken_tenant_claim = '/org/name'";
    let Some((server, _directory)) = server_with(&issuer, lines) else { return };
    let token = |tenant: Value, user: &str, scope: &str| {
        let changes = json!({ "org": { "name": tenant }, "scope": scope });
        key.sign(&changed(&claims(&issuer.name(), user), &changes))
    };
    let all = "cubicle:read cubicle:run cubicle:manage cubicle:act_for_others";
    let (ada, eve) = (token(json!("acme"), "ada", all), token(json!("others"), "ada", all));

    let unknown = who_am_i(&server, &ada);
    assert_eq!(unknown.refused(403), "denied");
    assert_eq!(
        unknown.json()["error"]["hint"],
        "an administrator makes it with 'cubicle tenant create acme'"
    );
    for name in ["acme", "others"] {
        server.post("/api/v1/tenants", &json!({ "name": name })).ok();
    }
    assert_eq!(who_am_i(&server, &ada).ok()["tenant"], "acme");
    assert!(refusal(&server, &key.sign(&claims(&issuer.name(), "ada"))).contains("has no claim '/org/name'"));
    assert!(refusal(&server, &token(json!("Acme, Inc."), "ada", all)).contains("cannot be used"));

    let lease = server.with_key("POST", "/api/v1/leases", &json!({}), &ada).ok();
    let (id, sandbox) =
        (lease["lease_id"].as_str().expect("an id"), lease["sandbox_id"].as_str().expect("a sandbox"));
    // The same user name in another tenant is somebody else.
    for (method, path) in [
        ("GET", format!("/api/v1/leases/{id}")),
        ("DELETE", format!("/api/v1/leases/{id}")),
        ("POST", format!("/api/v1/leases/{id}/heartbeat")),
        ("GET", format!("/api/v1/sandboxes/{sandbox}")),
        ("POST", format!("/api/v1/sandboxes/{sandbox}/execs")),
        ("DELETE", format!("/sandboxes/leases/{id}")),
    ] {
        let body = if path.ends_with("execs") { r#"{"command": "true"}"# } else { "" };
        let refused = server.request(method, &path, body.as_bytes(), &With { key: Some(&eve), headers: &[] });
        assert_eq!(refused.refused(404), "not_found", "{method} {path}");
    }
    assert_eq!(server.with_key("GET", "/api/v1/leases", &json!({}), &eve).ok()["items"], json!([]));
    let path = format!("/api/v1/leases/{id}");
    assert_eq!(server.with_key("GET", &path, &json!({}), &ada).ok()["status"], "ACTIVE");
    // Within the tenant, a key and a token with the same user are the same user.
    let own_key =
        server.with_key("POST", "/api/v1/keys", &json!({ "label": "x", "scopes": ["read"] }), &ada).ok();
    let own_key = own_key["secret"].as_str().expect("a secret");
    assert_eq!(server.with_key("GET", &path, &json!({}), own_key).ok()["user"], "ada");
}

#[test]
fn the_user_of_the_sandbox_managers_lease_is_the_subject_of_the_token() {
    let key = key("k", "ES384");
    let issuer = Issuer::start(&[&key]);
    let Some(server) = server_of(&issuer) else { return };
    let acquire = |user: &str, token: &str| {
        let body = json!({ "userId": user, "workflowId": "w", "requestId": user, "ttlSeconds": 60 });
        server.with_key("POST", "/sandboxes/leases", &body, token)
    };
    let own = claims(&issuer.name(), "auth0|ada");
    let ada = key.sign(&own);
    let lease = acquire("auth0|ada", &ada).ok();
    let path = format!("/sandboxes/leases/{}", lease["leaseId"].as_str().expect("an id"));
    let refused = acquire("auth0|eve", &ada);
    assert_eq!(refused.refused(403), "denied");
    assert_eq!(refused.json()["error"]["message"], "this token may not act for 'auth0|eve'");
    assert_eq!(server.with_key("DELETE", &path, &json!({}), &ada).status, 204);

    let proxy = json!({ "sub": "proxy", "scope": "cubicle:run cubicle:read cubicle:act_for_others" });
    let proxy = key.sign(&changed(&own, &proxy));
    let lease = acquire("auth0|eve", &proxy).ok();
    let id = lease["leaseId"].as_str().expect("an id");
    assert_eq!(server.get(&format!("/api/v1/leases/{id}")).ok()["user"], "auth0|eve");
    let entries = server.get("/api/v1/audit?actor=proxy").ok();
    assert!(entries["items"].as_array().is_some_and(|all| !all.is_empty()), "{entries}");
}

#[test]
fn a_subject_that_asks_too_often_has_to_wait_whatever_token_it_uses() {
    let key = key("k", "EdDSA");
    let issuer = Issuer::start(&[&key]);
    let lines = "token_audience = 'cubicle'\nrequests_per_second = 3";
    let Some((server, _directory)) = server_with(&issuer, lines) else { return };
    let own = claims(&issuer.name(), "ada");
    let answers: Vec<_> = (0..20)
        .map(|number| who_am_i(&server, &key.sign(&changed(&own, &json!({ "jti": number })))))
        .collect();
    let limited = answers.iter().find(|answer| answer.status == 429).expect("twenty at once are too many");
    assert_eq!(limited.refused(429), "rate_limited");
    assert!(!limited.header("retry-after").is_empty());
    who_am_i(&server, &key.sign(&claims(&issuer.name(), "eve"))).ok();
}

#[test]
fn without_an_audience_only_a_token_with_a_scope_of_ours_opens_anything() {
    let key = key("k", "EdDSA");
    let issuer = Issuer::start(&[&key]);
    let Some(server) = Server::start_with(&["--pool-size", "1", "--token-issuer", &issuer.name()]) else {
        return;
    };
    let own = claims(&issuer.name(), "ada");
    let for_the_wiki = key.sign(&changed(&own, &json!({ "aud": "wiki", "scope": "openid read" })));
    assert!(refusal(&server, &for_the_wiki).contains("no scope that begins with 'cubicle:'"));
    let for_us = key.sign(&changed(&own, &json!({ "aud": null, "scope": "openid cubicle:read" })));
    assert_eq!(who_am_i(&server, &for_us).ok()["scopes"], json!(["read"]));
}

#[test]
fn settings_of_tokens_have_an_effect_or_stop_the_start() {
    let Some(server) = Server::start() else { return };
    let key = key("k", "EdDSA");
    let message = refusal(&server, &key.sign(&claims("https://id.example.org", "ada")));
    assert_eq!(message, "this server accepts no tokens");
    let table: [(&[&str], &str); 4] = [
        (&["--jwks-url", "https://id.example.org/keys"], "AUTH_TOKEN_ISSUER"),
        (&["--token-audience", "cubicle"], "AUTH_TOKEN_ISSUER"),
        (&["--token-issuer", "http://id.example.org"], "is not encrypted"),
        (&["--token-issuer", "x", "--jwks-url", "file:///keys"], "is not an https:// address"),
    ];
    for (flags, expected) in table {
        let refused = server.host.cubicle(&[&["up", "--listen", "127.0.0.1:0"], flags].concat());
        assert_eq!(refused.status.code(), Some(125), "{refused:?}");
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn keys_are_fetched_over_tls_from_an_issuer_whose_certificate_is_trusted() {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let Some(website) = Website::start(directory.path()) else {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        _ = writeln!(std::io::stderr(), "skipped: {test}: needs openssl");
        return;
    };
    let key = key("k", "EdDSA");
    let keys = json!({ "keys": [key.published()] });
    std::fs::write(directory.path().join("keys"), keys.to_string()).expect("the file can be written");
    let jwks = format!("https://localhost:{}/keys", website.port);
    let flags =
        ["--pool-size", "1", "--token-issuer", "us", "--jwks-url", &jwks, "--token-audience", "cubicle"];
    let Some(mut server) = Server::start_with(&flags) else { return };
    let token = key.sign(&claims("us", "ada"));
    assert_eq!(who_am_i(&server, &token).refused(503), "unavailable");
    eventually("the reason in the log", || server.said().contains("SSL_CERT_FILE").then_some(()));
    server.stop();
    let certificate = directory.path().join("cert.pem").display().to_string();
    server.start_again_with(&[("SSL_CERT_FILE", &certificate)]);
    assert_eq!(who_am_i(&server, &token).ok()["user"], "ada");
    assert_eq!(server.request("GET", "/api/v1/whoami", b"", &With::default()).ok()["user"], "admin");
}

/// Files over TLS, with a certificate of its own making for `localhost`.
struct Website {
    serving: std::process::Child,
    port: u16,
}

impl Website {
    fn start(directory: &std::path::Path) -> Option<Self> {
        #[expect(clippy::disallowed_methods, reason = "openssl makes the certificate and serves it")]
        let openssl = || {
            let mut command = std::process::Command::new("openssl");
            command.current_dir(directory).stdin(std::process::Stdio::null());
            command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
            command
        };
        let made = openssl()
            .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
            .args([
                "-addext",
                "subjectAltName=DNS:localhost",
                "-addext",
                "basicConstraints=critical,CA:FALSE",
            ])
            .args(["-keyout", "key.pem", "-out", "cert.pem"])
            .status();
        if !made.is_ok_and(|status| status.success()) {
            return None;
        }
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has room");
        let port = free.local_addr().expect("it listens").port();
        drop(free);
        let serving = openssl()
            .args([
                "s_server",
                "-WWW",
                "-cert",
                "cert.pem",
                "-key",
                "key.pem",
                "-accept",
                &format!("127.0.0.1:{port}"),
            ])
            .spawn()
            .expect("openssl starts");
        let website = Self { serving, port };
        eventually("somebody who serves files", || std::net::TcpStream::connect(("127.0.0.1", port)).ok());
        Some(website)
    }
}

impl Drop for Website {
    fn drop(&mut self) {
        _ = self.serving.kill();
        _ = self.serving.wait();
    }
}

#[test]
fn the_example_of_the_guide_works() {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let guide = include_str!("../../../../docs/guide/authentication.md");
    let blocks: Vec<_> = guide.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let block = |with: &str| *blocks.iter().find(|block| block.contains(with)).expect("the guide has it");
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    #[expect(clippy::disallowed_methods, reason = "a reader runs it in a shell")]
    let run = |text: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-euc", text]).current_dir(directory.path()).output().expect("there is a shell")
    };
    if !run("command -v openssl basenc curl").status.success() {
        _ = writeln!(std::io::stderr(), "skipped: {test}: needs openssl, basenc and curl");
        return;
    }
    let made = run(block("openssl genpkey"));
    assert!(made.status.success(), "{made:?}");
    let published = std::fs::read(directory.path().join("public/keys.json")).expect("keys are published");
    let issuer = Issuer::start(&[]);
    issuer.publish_as(&serde_json::from_slice(&published).expect("the set is JSON"));
    let jwks = issuer.jwks_url();
    let flags =
        ["--pool-size", "1", "--token-issuer", "me", "--jwks-url", &jwks, "--token-audience", "cubicle"];
    let Some(server) = Server::start_with(&flags) else { return };
    let asked = run(&block("curl").replace("http://127.0.0.1:7878", &server.address));
    let me: Value = serde_json::from_slice(&asked.stdout).unwrap_or_else(|_| panic!("{asked:?}"));
    assert_eq!((&me["user"], &me["scopes"]), (&json!("ada"), &json!(["read", "run"])));
}
