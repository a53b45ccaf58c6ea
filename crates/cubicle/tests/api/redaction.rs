//! What leaves towards people holds no secret: results, streams from any seq, commands, refusals, the audit log, journals, the
//! server's log and traces. The rest of it is as it was, byte for byte and at its place.

use std::io::{BufRead, Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{BOUND, Server, With, eventually};
use crate::collector::{Collector, Manners};
use crate::host::Host;

const VALUE: &str = "Zq7/+Tr9x w0rd&4ever";
/// What looks like a credential, and is none that anybody set.
const SHAPE: &str = "AKIAIOSFODNN7EXAMPLE";
const NO_PROVIDERS: [(&str, &str); 4] =
    [("ANTHROPIC_API_KEY", ""), ("OPENAI_API_KEY", ""), ("GEMINI_API_KEY", ""), ("GOOGLE_API_KEY", "")];

/// Prints what it is told of the secret, which is in a file beside it.
const PRINT: &str = "
import sys, time, base64, urllib.parse
value = open('/workspace/value').read()
out = lambda text: (sys.stdout.write(text), sys.stdout.flush())
for word in sys.argv[1:]:
    if word == 'plain': out(value + '\\n')
    if word == 'base64': out(base64.b64encode(('ada:' + value).encode()).decode() + '\\n')
    if word == 'url': out(urllib.parse.quote_plus(value) + '\\n')
    if word == 'json': out(__import__('json').dumps('/' + value) + '\\n')
    if word == 'stderr': sys.stderr.write(value + '\\n'); sys.stderr.flush()
    if word == 'binary': sys.stdout.buffer.write(b'\\0\\xff' + value.encode() + b'\\xfe\\n'); sys.stdout.flush()
    if word.startswith('split'):
        at = int(word[5:])
        out(value[:at]); time.sleep(0.2); out(value[at:] + '\\n')
";

fn start(environment: &[(&str, &str)]) -> Option<Server> {
    let environment = [&NO_PROVIDERS, environment].concat();
    Some(Server::start_on(Host::new()?, &["--pool-size", "1"], &environment))
}

/// A server that knows the secret, and one of its sandboxes that has it too.
fn with_secret() -> Option<(Server, String)> {
    let server = start(&[])?;
    server.put("/api/v1/secrets/KEY", &json!({ "value": VALUE })).ok();
    let sandbox = sandbox(&server);
    Some((server, sandbox))
}

fn files() -> Value {
    json!([{ "path": "value", "content": VALUE }, { "path": "print.py", "content": PRINT }])
}

fn sandbox(server: &Server) -> String {
    server.lease(&json!({ "files": files() })).1
}

fn command(words: &[&str]) -> Value {
    json!([&["python3", "print.py"], words].concat())
}

fn run(server: &Server, sandbox: &str, asked: &Value) -> Value {
    server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), asked).ok()
}

/// The bytes of a stream in a result, or of a frame.
fn bytes(shown: &Value) -> Vec<u8> {
    let content = shown["content"].as_str().expect("there is content");
    match shown["encoding"].as_str() {
        Some("base64") => STANDARD.decode(content).expect("it is base64"),
        _ => content.as_bytes().to_vec(),
    }
}

fn stars(count: usize) -> String {
    "*".repeat(count)
}

#[test]
fn a_result_masks_every_spelling_and_counts_them() {
    let Some((server, sandbox)) = with_secret() else { return };
    let id = "exec-bbbbbbbbbbbbbbbbbbbbbbbbbb";
    let words = ["plain", "base64", "url", "json", "stderr", "binary"];
    let asked = json!({ "command": command(&words), "exec_id": id });
    let exec = run(&server, &sandbox, &asked);
    let result = &exec["result"];
    let plain = stars(VALUE.len());
    // In base64, the letter after `ada:` is decided by both.
    let expected = [
        format!("{plain}\nYWRhOl").into_bytes(),
        format!("{}\n{}\n\"/{plain}\"\n", stars(26), stars(26)).into_bytes(),
        [b"\0\xff", plain.as_bytes(), b"\xfe\n"].concat(),
    ]
    .concat();
    let shown = bytes(&result["stdout"]);
    assert_eq!(String::from_utf8_lossy(&shown), String::from_utf8_lossy(&expected));
    assert_eq!((&result["stdout_bytes"], &result["redacted"]), (&json!(shown.len()), &json!(6)), "{result}");
    assert_eq!(bytes(&result["stderr"]), format!("{plain}\n").as_bytes());
    let again = run(&server, &sandbox, &asked);
    for field in ["stdout", "stderr", "redacted"] {
        assert_eq!(again["result"][field], result[field], "told again it is the same");
    }

    let once = json!({ "command": command(&["plain"]), "files": files() });
    let once = server.post("/api/v1/execs", &once).ok();
    assert_eq!(
        (bytes(&once["result"]["stdout"]), &once["result"]["redacted"]),
        (format!("{plain}\n").into_bytes(), &json!(1))
    );
    let nothing = run(&server, &sandbox, &json!({ "command": "echo nothing" }));
    assert!(nothing["result"].get("redacted").is_none(), "{nothing}");

    // A file is its owner's, and is read as it is.
    let file = server.get(&format!("/api/v1/sandboxes/{sandbox}/files?path=/workspace/value"));
    assert_eq!(file.text, VALUE);
}

#[test]
fn a_result_that_is_cut_shows_no_part_of_a_secret() {
    let Some((server, sandbox)) = with_secret() else { return };
    for limit in [1, 4, VALUE.len() - 1, VALUE.len(), VALUE.len() + 1] {
        let asked = json!({ "command": command(&["plain"]), "output_limit_bytes": limit });
        let result = run(&server, &sandbox, &asked)["result"].clone();
        let expected = &format!("{}\n", stars(VALUE.len()))[..limit];
        assert_eq!(bytes(&result["stdout"]), expected.as_bytes());
        assert_eq!(result["stdout_truncated"], json!(limit <= VALUE.len()), "{limit}: {result}");
        assert_eq!(result["redacted"], json!(1), "{limit}: {result}");
    }
}

#[test]
fn what_only_looks_like_a_credential_stays_in_output_and_is_masked_in_logs() {
    let Some(server) = start(&[]) else { return };
    let exec = server.post("/api/v1/execs", &json!({ "command": ["echo", SHAPE] })).ok();
    assert_eq!(bytes(&exec["result"]["stdout"]), format!("{SHAPE}\n").as_bytes());
    assert_eq!((&exec["command"], exec["result"].get("redacted")), (&json!(["echo", SHAPE]), None));
    let entry = audited(&server, &exec["exec_id"], "");
    assert_eq!(entry["detail"], json!(["echo", stars(SHAPE.len())]).to_string());
    verify(&server);
    // Whoever sent it sees it in the refusal; whoever reads the log does not.
    let refused = server.post("/api/v1/leases", &json!({ SHAPE: 1 }));
    assert_eq!(refused.refused(400), "invalid");
    assert!(refused.text.contains(SHAPE), "{refused:?}");
    server.waits_to_say(&stars(SHAPE.len()));
    assert!(!server.said().contains(SHAPE));
}

#[test]
fn shapes_are_a_setting() {
    let Some(server) = start(&[("CUBICLE_REDACT_PATTERNS", "tok_[a-z]{8,}")]) else { return };
    let exec = server.post("/api/v1/execs", &json!({ "command": ["echo", SHAPE, "tok_abcdefghij"] })).ok();
    let entry = audited(&server, &exec["exec_id"], "");
    assert_eq!(entry["detail"], json!(["echo", SHAPE, stars(14)]).to_string());
}

/// The audit log's entry of the start of an exec.
fn audited(server: &Server, exec: &Value, more: &str) -> Value {
    let entries = server.get(&format!("/api/v1/audit?limit=1000{more}")).ok();
    let items = entries["items"].as_array().expect("a page has items");
    items
        .iter()
        .find(|entry| entry["subject"] == *exec && entry["action"] == "exec.create")
        .unwrap_or_else(|| panic!("no entry of {exec}: {entries}"))
        .clone()
}

fn verify(server: &Server) {
    let verdict = server.host.cubicle(&["audit", "verify"]);
    assert!(verdict.status.success(), "{verdict:?}");
}

#[test]
fn commands_refusals_and_the_audit_log_hold_no_secret() {
    let Some((server, sandbox)) = with_secret() else { return };
    let execs = format!("/api/v1/sandboxes/{sandbox}/execs");
    let exec = run(&server, &sandbox, &json!({ "command": ["echo", VALUE] }));
    let id = exec["exec_id"].as_str().expect("an id").to_owned();
    let masked = json!(["echo", stars(VALUE.len())]);
    assert_eq!(exec["command"], masked);
    assert_eq!(server.get(&format!("/api/v1/execs/{id}")).ok()["command"], masked);
    assert_eq!(server.get(&execs).ok()["items"][0]["command"], masked);
    let entry = audited(&server, &exec["exec_id"], "");
    assert_eq!(entry["detail"], masked.to_string());
    assert_eq!(entry.get("detail_sha256"), None, "it was never written");
    let start = server.request("GET", &format!("/api/v1/execs/{id}/output"), b"", &lines());
    let start: Value = serde_json::from_str(start.text.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&start["kind"], &start["data"]["command"]), (&json!("start"), &masked));

    let refused_id = "exec-cccccccccccccccccccccccccc";
    let asked = json!({ "command": [format!("/{VALUE}")], "exec_id": refused_id });
    let refused = server.post(&execs, &asked);
    assert_eq!(refused.refused(400), "invalid");
    assert!(refused.text.contains(&stars(VALUE.len())) && !refused.text.contains(VALUE), "{refused:?}");
    let noted = eventually("a refusal that was noted", || {
        let exec = server.get(&format!("/api/v1/execs/{refused_id}")).ok();
        exec["result"]["refused"].as_str().map(str::to_owned)
    });
    assert!(noted.contains(&stars(VALUE.len())), "{noted}");
    let quoted = server.post("/api/v1/leases", &json!({ VALUE: 1 }));
    assert!(quoted.text.contains(&stars(VALUE.len())) && !quoted.text.contains(VALUE), "{quoted:?}");

    // One that is set afterwards is masked all the same, and the log is still whole.
    let later = run(&server, &sandbox, &json!({ "command": ["echo", "a-later-secret"] }));
    audited(&server, &later["exec_id"], "");
    server.put("/api/v1/secrets/LATER", &json!({ "value": "a-later-secret" })).ok();
    let node = entry["node"].as_str().expect("a node");
    for more in [String::new(), format!("&node={node}")] {
        let entry = audited(&server, &later["exec_id"], &more);
        assert_eq!(entry["detail"], json!(["echo", stars(14)]).to_string());
        assert!(entry["detail_sha256"].is_string(), "{entry}");
    }
    let exported = server.host.cubicle(&["audit", "export"]);
    let exported = String::from_utf8_lossy(&exported.stdout).into_owned();
    assert!(exported.contains("exec.create") && !exported.contains("a-later-secret"), "{exported}");
    verify(&server);

    let events = server.stream("/api/v1/events?after=0", &[("accept", "application/x-ndjson")]);
    let told: Vec<String> = events.lines().map_while(Result::ok).take(5).collect();
    let said = server.said() + &told.join("\n");
    assert!(said.contains("an exec was not started"), "{said}");
    for value in [VALUE, "a-later-secret"] {
        assert!(!said.contains(value), "{said}");
    }
    let database = std::fs::read(server.host.data_dir().join("server/cubicle.db")).expect("a database");
    let log = std::fs::read(server.host.data_dir().join("server/cubicle.db-wal")).unwrap_or_default();
    let found =
        [database, log].iter().any(|file| file.windows(VALUE.len()).any(|part| part == VALUE.as_bytes()));
    assert!(!found, "the database holds the value");
}

fn lines() -> With<'static> {
    With { key: None, headers: &[("accept", "application/x-ndjson")] }
}

fn frames(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")))
        .collect()
}

/// The frames of a stream of server-sent events.
fn events(text: &str) -> Vec<Value> {
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON"))
        .collect()
}

fn text_of(frames: &[Value], kind: &str) -> String {
    let of_kind = frames.iter().filter(|frame| frame["kind"] == kind);
    of_kind.map(|frame| String::from_utf8_lossy(&bytes(frame)).into_owned()).collect()
}

#[test]
fn every_stream_from_every_seq_is_masked_while_it_is_written_and_afterwards() {
    let Some((server, sandbox)) = with_secret() else { return };
    let splits: Vec<String> = [3, 8, VALUE.len() - 1].iter().map(|at| format!("split{at}")).collect();
    let words: Vec<&str> = splits.iter().map(String::as_str).chain(["stderr", "plain", "base64"]).collect();
    let asked = json!({ "command": command(&words), "background": true });
    let id = run(&server, &sandbox, &asked)["exec_id"].as_str().expect("an id").to_owned();
    let output = format!("/api/v1/execs/{id}/output");
    let plain = stars(VALUE.len());
    let expected = format!("{}YWRhOl{}\n", format!("{plain}\n").repeat(4), stars(26));

    let read = |path: &str, accept: &str| {
        let mut text = String::new();
        server.stream(path, &[("accept", accept)]).read_to_string(&mut text).expect("text");
        text
    };
    // Many at once, who share what one of them reads, and one that goes along in another form.
    let (sse, same, ndjson, bytes_only, everything) = std::thread::scope(|scope| {
        let sse = scope.spawn(|| read(&output, "text/event-stream"));
        let same = scope.spawn(|| read(&output, "text/event-stream"));
        let ndjson = scope.spawn(|| read(&output, "application/x-ndjson"));
        let plain = scope.spawn(|| read(&format!("{output}?stream=stdout"), "*/*"));
        let everything = scope.spawn(|| read(&format!("/api/stream/{id}"), "*/*"));
        let join = |reader: std::thread::ScopedJoinHandle<'_, String>| reader.join().expect("a reader");
        (join(sse), join(same), join(ndjson), join(plain), join(everything))
    });
    assert_eq!(bytes_only, expected);
    for live in [events(&sse), events(&same), frames(&ndjson), events(&everything)] {
        assert_eq!(text_of(&live, "stdout"), expected);
        assert_eq!(text_of(&live, "stderr"), format!("{plain}\n"));
    }

    // From every seq, as long as the sandbox is there, and when its journal was kept.
    let check = || {
        let all = frames(&server.request("GET", &output, b"", &lines()).text);
        assert_eq!(text_of(&all, "stdout"), expected);
        for first in 0..all.len() {
            let seq = all[first]["seq"].as_u64().expect("a seq");
            let later = frames(&server.request("GET", &format!("{output}?from={seq}"), b"", &lines()).text);
            assert_eq!(later, all[first..], "from {seq}");
        }
        let seen = all[all.len() / 2]["seq"].to_string();
        let headers = [("accept", "text/event-stream"), ("last-event-id", seen.as_str())];
        let resumed = server.request("GET", &output, b"", &With { key: None, headers: &headers });
        assert_eq!(events(&resumed.text), all[all.len() / 2 + 1..]);
        all
    };
    let while_it_is_there = check();
    let lease = server.get(&format!("/api/v1/sandboxes/{sandbox}")).ok()["lease_id"].clone();
    server.delete(&format!("/api/v1/leases/{}", lease.as_str().expect("a lease"))).ok();
    let artifact = eventually("a kept journal", || {
        let all = server.get("/api/v1/artifacts").ok();
        all["items"].as_array().expect("items").iter().find(|one| one["subject"] == sandbox.as_str()).cloned()
    });
    assert_eq!(check(), while_it_is_there);

    // The journal itself leaves with the same masks, as long as it was.
    let content = format!("/api/v1/artifacts/{}/content", artifact["artifact_id"].as_str().expect("an id"));
    let whole = server.get(&content);
    assert!(whole.text.contains(&plain) && !whole.text.contains(VALUE));
    assert_eq!(
        (whole.header("content-length"), whole.header("etag")),
        (artifact["size"].to_string().as_str(), "")
    );
    let part = server.request("GET", &content, b"", &With { key: None, headers: &[("range", "bytes=0-6")] });
    assert_eq!((part.status, part.text.as_str()), (206, "CUBJRNL"));
}

#[test]
fn a_secret_that_is_set_or_replaced_holds_from_then_on_also_for_who_reads_already() {
    let Some(server) = start(&[]) else { return };
    let sandbox = sandbox(&server);
    let script = "cat value; echo; until [ -e go ]; do sleep 0.02; done; cat value; echo; echo newer-value";
    let asked = json!({ "command": script, "background": true });
    let id = run(&server, &sandbox, &asked)["exec_id"].as_str().expect("an id").to_owned();
    let mut reader = server.stream(&format!("/api/v1/execs/{id}/output"), &[]);
    let mut line = String::new();
    reader.read_line(&mut line).expect("a line");
    assert_eq!(line.trim_end(), VALUE, "nobody said that it is one");
    server.put("/api/v1/secrets/KEY", &json!({ "value": VALUE })).ok();
    let go = format!("/api/v1/sandboxes/{sandbox}/files?path=/workspace/go");
    assert!((200..300).contains(&server.request("PUT", &go, b"x", &With::default()).status));
    let mut rest = String::new();
    reader.read_to_string(&mut rest).expect("the rest");
    let plain = stars(VALUE.len());
    assert_eq!(rest, format!("{plain}\nnewer-value\n"));
    // What came before is masked for who reads it now.
    let output = format!("/api/v1/execs/{id}/output");
    assert_eq!(server.get(&output).text, format!("{plain}\n{plain}\nnewer-value\n"));
    // An earlier value is not known any more: whoever replaces one gives it up first.
    server.put("/api/v1/secrets/KEY", &json!({ "value": "newer-value" })).ok();
    assert_eq!(server.get(&output).text, format!("{VALUE}\n{VALUE}\n{}\n", stars(11)));
    // It is the tenant's own: another one has nothing to do with it.
    let key = server.key_of("elsewhere", "eve", &["read", "run"]);
    let asked = json!({ "command": "echo newer-value" });
    let exec = server.with_key("POST", "/api/v1/execs", &asked, &key).ok();
    assert_eq!(bytes(&exec["result"]["stdout"]), b"newer-value\n");
}

#[test]
fn a_prompt_without_a_line_feed_is_shown_while_the_program_waits() {
    let Some((server, sandbox)) = with_secret() else { return };
    // The last letter is the first of the secret, and other output waits behind the beginning of one.
    let script = "printf 'Name of Z'; until [ -e go ]; do sleep 0.02; done; printf 'Zq7/+T'; echo busy >&2; \
        until [ -e on ]; do sleep 0.02; done";
    let asked = json!({ "command": script, "background": true });
    let id = run(&server, &sandbox, &asked)["exec_id"].as_str().expect("an id").to_owned();
    let mut reader = server.stream(&format!("/api/v1/execs/{id}/output"), &[]);
    let mut shown = |expected: &str| {
        let mut text = vec![0; expected.len()];
        reader.read_exact(&mut text).expect("it is shown");
        assert_eq!(String::from_utf8_lossy(&text), expected);
    };
    let touch = |name: &str| {
        let path = format!("/api/v1/sandboxes/{sandbox}/files?path=/workspace/{name}");
        assert!((200..300).contains(&server.request("PUT", &path, b"x", &With::default()).status));
    };
    shown("Name of Z");
    touch("go");
    shown("******busy\n");
    touch("on");
}

#[test]
fn a_terminal_shows_no_secret() {
    let Some((server, sandbox)) = with_secret() else { return };
    let address = server.address.trim_start_matches("http://").to_owned();
    let mut stream = std::net::TcpStream::connect(&address).expect("it listens");
    stream.set_read_timeout(Some(BOUND)).expect("a timeout can be set");
    let request = format!(
        "GET /api/v1/sandboxes/{sandbox}/terminal?command=cat%20value;echo%20done HTTP/1.1\r\nhost: {address}\r\n\
         authorization: Bearer {}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        server.admin_key()
    );
    stream.write_all(request.as_bytes()).expect("it takes the request");
    let (mut seen, mut piece) = (Vec::new(), [0; 1024]);
    while !String::from_utf8_lossy(&seen).contains("done") {
        let length = stream.read(&mut piece).expect("the terminal says something");
        assert!(length > 0, "the terminal ended: {}", String::from_utf8_lossy(&seen));
        seen.extend_from_slice(&piece[..length]);
    }
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert!(seen.contains(&stars(VALUE.len())) && !seen.contains("w0rd"), "{seen}");
}

#[test]
fn traces_hold_no_secret() {
    let collector = Collector::start(Manners::Takes);
    let Some(server) = start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint())]) else { return };
    server.put("/api/v1/secrets/KEY", &json!({ "value": VALUE })).ok();
    let sandbox = sandbox(&server);
    for program in [VALUE, SHAPE] {
        let asked = json!({ "command": [format!("/{program}")] });
        let refused = server.post(&format!("/api/v1/sandboxes/{sandbox}/execs"), &asked);
        assert_eq!(refused.refused(400), "invalid");
    }
    let spans = eventually("spans of execs that failed", || {
        let spans = serde_json::to_string(&collector.spans()).expect("JSON");
        (spans.contains(&stars(VALUE.len())) && spans.matches("no program").count() > 1).then_some(spans)
    });
    assert!(!spans.contains(VALUE) && !spans.contains(SHAPE), "{spans}");
}
