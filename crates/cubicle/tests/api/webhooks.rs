//! Webhooks both ways: what receivers are told, what workers tell, and what neither can do.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use serde_json::{Value, json};

use crate::client::{Reply, Server, With, eventually};
use crate::host::Host;

const CALLED: &str = "/api/webhooks/worker-complete";
/// Loopback is where most assistants live, and where tests do.
const ALLOWED: (&str, &str) = ("CUBICLE_WEBHOOKS_ALLOW", "127.0.0.1");
const QUICK: (&str, &str) = ("CUBICLE_WEBHOOKS_RETRY_PAUSES", "20ms 20ms");
const IMPATIENT: (&str, &str) = ("CUBICLE_WEBHOOKS_TIMEOUT", "500ms");

fn start(environment: &[(&str, &str)]) -> Option<Server> {
    let environment = [&[ALLOWED, QUICK, IMPATIENT], environment].concat();
    Some(Server::start_on(Host::new()?, &["--pool-size", "1"], &environment))
}

/// What a receiver got.
#[derive(Debug, Clone)]
struct Got {
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(String::as_str).unwrap_or_default()
    }

    /// As the Standard Webhooks specification has it, and by nothing of the product.
    fn is_signed_with(&self, secret: &str) -> bool {
        let key = STANDARD.decode(secret.strip_prefix("whsec_").expect("a secret of Standard Webhooks"));
        let signed =
            format!("{}.{}.{}", self.header("webhook-id"), self.header("webhook-timestamp"), self.body);
        let expected = format!("v1,{}", STANDARD.encode(mac(&key.expect("base64"), &signed)));
        self.header("webhook-signature").split(' ').any(|one| one == expected)
    }
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn plain_signature(secret: &str, body: &str) -> String {
    format!("sha256={}", hex(&mac(secret.as_bytes(), body)))
}

/// A receiver on loopback. It answers what it is told to, then 200 to everything.
struct Receiver {
    at: SocketAddr,
    got: Arc<Mutex<Vec<Got>>>,
    answers: Arc<Mutex<Vec<String>>>,
    ends: Arc<AtomicBool>,
    serving: Option<JoinHandle<()>>,
}

/// Says nothing until the caller has gone.
const SILENCE: &str = "";

fn answer(status: u16) -> String {
    format!("HTTP/1.1 {status} X\r\ncontent-length: 3\r\nconnection: close\r\n\r\nso.")
}

impl Receiver {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let at = listener.local_addr().expect("it listens");
        Self::on(listener, at)
    }

    fn on(listener: TcpListener, at: SocketAddr) -> Self {
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let answers: Arc<Mutex<Vec<String>>> = Arc::default();
        let ends = Arc::new(AtomicBool::new(false));
        let (seen, script, stop) = (Arc::clone(&got), Arc::clone(&answers), Arc::clone(&ends));
        let serving = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
                std::thread::spawn(move || serve(stream, &seen, &script));
            }
        });
        Self { at, got, answers, ends, serving: Some(serving) }
    }

    fn url(&self) -> String {
        format!("http://{}/hooks?of=mine", self.at)
    }

    fn says(&self, answers: &[String]) {
        *self.answers.lock().expect("nobody panics with it") = answers.iter().rev().cloned().collect();
    }

    fn got(&self) -> Vec<Got> {
        self.got.lock().expect("nobody panics with it").clone()
    }

    fn waits_for(&self, count: usize) -> Vec<Got> {
        eventually(&format!("{count} deliveries"), || Some(self.got()).filter(|got| got.len() >= count))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.at);
        if let Some(serving) = self.serving.take() {
            let _ = serving.join();
        }
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Got>>, script: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let headers: BTreeMap<String, String> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let path = lines[0].split(' ').nth(1)?.to_owned();
    // The answer is chosen before anybody sees that the request was here.
    let said = script.lock().expect("nobody panics with it").pop().unwrap_or_else(|| answer(200));
    let body = String::from_utf8_lossy(&body).into_owned();
    seen.lock().expect("nobody panics with it").push(Got { path, headers, body });
    match said.as_str() {
        SILENCE => _ = reader.read(&mut [0]),
        said => (&stream).write_all(said.as_bytes()).ok()?,
    }
    Some(())
}

fn registered(server: &Server, url: &str) -> (String, String) {
    let made = server.post("/api/v1/webhooks", &json!({ "url": url })).ok();
    let text = |name: &str| made[name].as_str().expect("a new webhook has it").to_owned();
    (text("webhook_id"), text("secret"))
}

fn tried(server: &Server, webhook: &str) -> String {
    let made = server.post(&format!("/api/v1/webhooks/{webhook}/test"), &json!({})).ok();
    made["delivery_id"].as_str().expect("a delivery has an id").to_owned()
}

fn delivery(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/webhooks/deliveries/{id}")).ok()
}

fn waits_for_state(server: &Server, id: &str, state: &str) -> Value {
    eventually(&format!("{id} is {state}"), || Some(delivery(server, id)).filter(|one| one["state"] == state))
}

#[test]
fn a_webhook_is_registered_told_and_removed() {
    let Some(server) = start(&[]) else { return };
    let receiver = Receiver::start();
    let made = server.post("/api/v1/webhooks", &json!({ "url": receiver.url(), "description": "mine" }));
    assert_eq!(made.status, 201);
    let made = made.ok();
    let (id, secret) =
        (made["webhook_id"].as_str().expect("an id"), made["secret"].as_str().expect("a secret"));
    assert_eq!((&made["events"], &made["enabled"]), (&json!(["worker_completed"]), &json!(true)));
    let shown = server.get(&format!("/api/v1/webhooks/{id}"));
    assert!(!shown.text.contains(secret) && !server.get("/api/v1/webhooks").text.contains(secret));
    assert_eq!(shown.ok()["description"], "mine");

    let sent = tried(&server, id);
    let got = receiver.waits_for(1).remove(0);
    assert_eq!((got.path.as_str(), got.header("webhook-id")), ("/hooks?of=mine", sent.as_str()));
    assert_eq!(
        (got.header("content-type"), got.header("x-webhook-source")),
        ("application/json", "kubernetes")
    );
    assert!(got.is_signed_with(secret), "{got:?}");
    assert_eq!(got.header("x-webhook-signature"), plain_signature(secret, &got.body));
    let body: Value = serde_json::from_str(&got.body).expect("JSON");
    assert_eq!((&body["event_type"], &body["webhook_id"]), (&json!("ping"), &json!(id)));
    let delivered = waits_for_state(&server, &sent, "delivered");
    assert_eq!((&delivered["attempts"], &delivered["last_status"]), (&json!(1), &json!(200)));
    assert_eq!(delivered["log"][0]["answer"], "so.");
    assert!(delivered["next_at"].is_null());

    // Nothing of the secret is on the disk, in the log or in the audit log.
    let database = std::fs::read(server.host.data_dir().join("server/cubicle.db")).expect("it is a file");
    let plain = secret.as_bytes();
    assert!(!database.windows(plain.len()).any(|part| part == plain));
    let audit = server.get("/api/v1/audit").text;
    assert!(!server.said().contains(secret) && !audit.contains(secret));
    assert!(audit.contains("webhook.created") && audit.contains("webhook.tried"), "{audit}");

    assert_eq!(server.delete(&format!("/api/v1/webhooks/{id}")).status, 204);
    assert_eq!(server.delete(&format!("/api/v1/webhooks/{id}")).refused(404), "not_found");
    let replayed = server.post(&format!("/api/v1/webhooks/deliveries/{sent}/replay"), &json!({}));
    assert_eq!(replayed.refused(409), "conflict");
    assert_eq!(receiver.got().len(), 1);
    let metrics = server.get("/metrics").text;
    assert!(metrics.contains("cubicle_webhook_attempt_seconds_count{outcome=\"delivered\"} 1"), "{metrics}");
}

#[test]
fn a_receiver_that_fails_is_tried_again_given_up_and_replayed() {
    let Some(server) = start(&[]) else { return };
    let receiver = Receiver::start();
    let (id, secret) = registered(&server, &receiver.url());
    // An error, no answer at all, and then it hears.
    receiver.says(&[answer(500), SILENCE.into()]);
    let sent = tried(&server, &id);
    let delivered = waits_for_state(&server, &sent, "delivered");
    assert_eq!(delivered["attempts"], 3, "{delivered}");
    let log: Vec<_> = (0..3).map(|index| delivered["log"][index]["status"].clone()).collect();
    assert_eq!(log, [json!(500), Value::Null, json!(200)]);
    assert!(delivered["log"][1]["error"].as_str().expect("why").contains("no answer within"), "{delivered}");
    let got = receiver.got();
    assert!(got.iter().all(|one| one.header("webhook-id") == sent && one.is_signed_with(&secret)), "{got:?}");
    assert!(got.iter().all(|one| one.body == got[0].body));

    receiver.says(&[answer(503), answer(302), answer(404)]);
    let lost = tried(&server, &id);
    let dead = waits_for_state(&server, &lost, "dead");
    assert_eq!((&dead["attempts"], &dead["last_status"]), (&json!(3), &json!(404)), "{dead}");
    let listed = server.get("/api/v1/webhooks/deliveries?state=dead").ok();
    assert_eq!(listed["items"][0]["delivery_id"], json!(lost));
    assert_eq!(listed["items"].as_array().expect("items").len(), 1);
    let of_it = server.get(&format!("/api/v1/webhooks/deliveries?webhook_id={id}&limit=1")).ok();
    assert_eq!((&of_it["items"][0]["delivery_id"], of_it["next"].is_string()), (&json!(lost), true));
    let rest = of_it["next"].as_str().expect("there is more");
    let rest = server.get(&format!("/api/v1/webhooks/deliveries?webhook_id={id}&limit=1&after={rest}")).ok();
    assert_eq!((&rest["items"][0]["delivery_id"], &rest["next"]), (&json!(sent), &Value::Null));

    let replayed = server.post(&format!("/api/v1/webhooks/deliveries/{lost}/replay"), &json!({}));
    assert_eq!((replayed.status, &replayed.json()["state"]), (202, &json!("pending")));
    let delivered = waits_for_state(&server, &lost, "delivered");
    assert_eq!(delivered["attempts"], 4);
    assert_eq!(receiver.got().last().expect("it was told").header("webhook-id"), lost);
    assert!(server.get("/api/v1/audit").text.contains("webhook.replayed"));
    let events = events(&server, &lost);
    assert_eq!(events[0]["type"], "webhook.delivery_dead", "{events:?}");
}

/// Of one subject.
fn events(server: &Server, subject: &str) -> Vec<Value> {
    let output = server.host.cubicle(&["events", "--json", "--subject", subject]);
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().map(|line| serde_json::from_str(line).expect("lines of JSON")).collect()
}

#[test]
fn a_receiver_that_nobody_answers_for_is_told_when_it_is_back() {
    let Some(server) = start(&[("CUBICLE_WEBHOOKS_RETRY_PAUSES", "100ms ".repeat(20).trim())]) else {
        return;
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let at = listener.local_addr().expect("it listens");
    drop(listener);
    let (id, _) = registered(&server, &format!("http://{at}/"));
    let sent = tried(&server, &id);
    let waiting = eventually("a refused connection", || {
        Some(delivery(&server, &sent)).filter(|one| one["attempts"].as_u64().is_some_and(|count| count > 0))
    });
    assert!(waiting["last_error"].as_str().expect("why").contains("no connection"), "{waiting}");
    let listener = TcpListener::bind(at).expect("nobody took its place");
    let receiver = Receiver::on(listener, at);
    waits_for_state(&server, &sent, "delivered");
    assert_eq!(receiver.got().len(), 1);
}

#[test]
fn a_receiver_that_is_gone_or_asks_for_time_is_heeded() {
    let Some(server) = start(&[]) else { return };
    let receiver = Receiver::start();
    let (id, _) = registered(&server, &receiver.url());
    receiver.says(&[answer(410)]);
    let sent = tried(&server, &id);
    let dead = waits_for_state(&server, &sent, "dead");
    assert_eq!((&dead["attempts"], &dead["last_status"]), (&json!(1), &json!(410)));
    let path = format!("/api/v1/webhooks/{id}");
    assert_eq!(server.get(&path).ok()["enabled"], false);
    let enabled = server.request("PATCH", &path, b"{\"enabled\": true}", &With::default()).ok();
    assert_eq!(enabled["enabled"], true);

    let busy = "HTTP/1.1 503 X\r\nretry-after: 3600\r\ncontent-length: 0\r\n\r\n";
    receiver.says(&[busy.into()]);
    let sent = tried(&server, &id);
    let waiting =
        eventually("an answer", || Some(delivery(&server, &sent)).filter(|one| one["attempts"] == 1));
    let at = |name: &str| waiting[name].as_str().expect("a time").parse::<cubicle_model::Timestamp>();
    let (next, made) = (at("next_at").expect("a time"), at("created_at").expect("a time"));
    let pause = next.as_second() - made.as_second();
    assert!((3599..4000).contains(&pause), "{waiting}");
    // Whoever does not want to wait replays it.
    server.post(&format!("/api/v1/webhooks/deliveries/{sent}/replay"), &json!({})).ok();
    waits_for_state(&server, &sent, "delivered");
}

#[test]
fn nobody_is_told_what_the_operator_does_not_allow() {
    let Some(server) = start(&[]) else { return };
    let trap = Receiver::start();
    let port = trap.at.port();
    for url in [
        "http://127.0.0.2/".to_owned(),
        format!("http://[::1]:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        "http://10.0.0.1/".into(),
        "http://169.254.169.254/latest/meta-data/".into(),
        "http://[fd00:ec2::254]/".into(),
        "http://100.100.100.200/".into(),
        "http://0.0.0.0/".into(),
        "http://1.1.1.1:22/".into(),
    ] {
        let refused = server.post("/api/v1/webhooks", &json!({ "url": url }));
        assert_eq!(refused.refused(403), "denied", "{url}");
        assert!(refused.text.contains("webhooks.allow"), "{refused:?}");
    }
    for url in
        ["", "ftp://a.example/", "http://2130706433/", "http://user:pass@a.example/", "https://a.example/#x"]
    {
        assert_eq!(server.post("/api/v1/webhooks", &json!({ "url": url })).refused(400), "invalid", "{url}");
    }
    for (body, said) in [
        (json!({ "url": "https://a.example/", "events": ["pod_started"] }), "worker_completed"),
        (json!({ "url": "https://a.example/", "events": [] }), "at least one"),
        (json!({ "url": "https://a.example/", "secret": "short" }), "16 to 512"),
        (json!({ "url": "https://a.example/", "description": "x".repeat(257) }), "at most 256"),
    ] {
        let refused = server.post("/api/v1/webhooks", &body);
        assert_eq!(refused.refused(400), "invalid", "{body}");
        assert!(refused.text.contains(said), "{refused:?}");
    }
    // A name is only known by where it leads, when something is sent: here to this very host.
    let (id, _) = registered(&server, &format!("http://localhost:{port}/"));
    let sent = tried(&server, &id);
    let dead = waits_for_state(&server, &sent, "dead");
    assert!(dead["last_error"].as_str().expect("why").contains("webhooks.allow"), "{dead}");
    // A receiver that is allowed cannot send anybody elsewhere.
    let receiver = Receiver::start();
    let elsewhere =
        format!("HTTP/1.1 307 X\r\nlocation: http://localhost:{port}/\r\ncontent-length: 0\r\n\r\n");
    receiver.says(&[elsewhere.clone(), elsewhere.clone(), elsewhere]);
    let (id, _) = registered(&server, &receiver.url());
    let sent = tried(&server, &id);
    assert_eq!(waits_for_state(&server, &sent, "dead")["last_status"], 307);
    assert!(trap.got().is_empty(), "{:?}", trap.got());
}

#[test]
fn a_server_that_is_killed_delivers_when_it_is_back() {
    for (step, expected) in [("delivery_claimed", 1), ("delivery_sent", 2)] {
        let Some(mut server) = start(&[]) else { return };
        let receiver = Receiver::start();
        let (id, secret) = registered(&server, &receiver.url());
        server.kill();
        server.start_again_with(&[("CUBICLE_KILL_AT", &format!("{step}:1"))]);
        let sent = tried(&server, &id);
        server.wait_for_death(step);
        server.start_again();
        let delivered = waits_for_state(&server, &sent, "delivered");
        assert_eq!(delivered["attempts"], 1, "{step}: {delivered}");
        let got = receiver.got();
        // Whoever is told twice knows it by the id.
        assert_eq!(got.len(), expected, "{step}: {got:?}");
        assert!(got.iter().all(|one| one.header("webhook-id") == sent && one.is_signed_with(&secret)));
    }
}

/// A task that somebody waits for, and the token of its address.
fn given_task(server: &mut Server, notify_url: Option<&str>) -> (String, String) {
    let mut bits = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bits))
        .expect("there is randomness");
    let task = cubicle_model::TaskId::from_random(bits).to_string();
    server.stop();
    let database = server.host.data_dir().join("server/cubicle.db");
    let connection = rusqlite::Connection::open(database).expect("the database is a file");
    let statement = "INSERT INTO webhook_listeners (task, tenant, conversation, notify_url, created_at) \
        VALUES (?1, 'default', 'the-talk', ?2, 0)";
    connection.execute(statement, rusqlite::params![task, notify_url]).expect("listeners are a table");
    drop(connection);
    server.start_again();
    let token = token(server, &task);
    (task, token)
}

fn token(server: &Server, task: &str) -> String {
    let secret =
        std::fs::read_to_string(server.host.data_dir().join("server/link.secret")).expect("it is there");
    let digits = secret.trim().as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).expect("digits"));
    let key: Vec<u8> = digits.map(|pair| u8::from_str_radix(pair, 16).expect("hexadecimal")).collect();
    hex(&mac(&key, &format!("worker-complete{task}")))
}

fn completion(task: &str, status: &str) -> String {
    json!({
        "event_type": "worker_completed", "source": "kubernetes", "task_id": task, "status": status,
        "duration_seconds": 145, "exit_code": 0, "output_files": ["analyze_spending.py", "summary.md"],
        "error_message": null,
    })
    .to_string()
}

/// Without any key, as a worker calls.
fn call(server: &Server, token: &str, body: &str, headers: &[(&str, &str)]) -> Reply {
    let path = match token {
        "" => CALLED.to_owned(),
        token => format!("{CALLED}?token={token}"),
    };
    let mut all = vec![("content-type", "application/json"), ("x-webhook-source", "kubernetes")];
    all.extend(headers);
    let mut unique: BTreeMap<&str, &str> = BTreeMap::new();
    unique.extend(all);
    let headers: Vec<_> = unique.into_iter().collect();
    server.request("POST", &path, body.as_bytes(), &With { key: Some(""), headers: &headers })
}

#[test]
fn a_worker_tells_the_end_of_its_task_and_who_waits_is_told() {
    let receiver = Receiver::start();
    let Some(mut server) = start(&[("AI_WORKER_WEBHOOK_SECRET", "the-new-secret the-old-secret")]) else {
        return;
    };
    let (endpoint, secret) = {
        let other = Receiver::start();
        let (_, secret) = registered(&server, &other.url());
        (other, secret)
    };
    let (task, token) = given_task(&mut server, Some(&receiver.url()));
    let body = completion(&task, "success");
    // Only this enters the sandbox of the task.
    let own = hex(&mac(b"the-new-secret", &task));
    let heard = call(&server, &token, &body, &[("x-webhook-signature", &plain_signature(&own, &body))]).ok();
    assert_eq!(heard["status"], "accepted");
    let event = heard["event_id"].as_str().expect("an event").to_owned();
    assert!(event.starts_with("evt-"), "{event}");

    let got = receiver.waits_for(1).remove(0);
    assert_eq!(
        serde_json::from_str::<Value>(&got.body).expect("JSON"),
        serde_json::from_str::<Value>(&body).expect("JSON")
    );
    assert_eq!(got.header("x-webhook-signature"), plain_signature("the-new-secret", &got.body));
    assert_eq!(got.header("webhook-signature").split(' ').count(), 2, "both secrets sign");
    assert_eq!(got.header("x-conversation-id"), "the-talk");
    let told = endpoint.waits_for(1).remove(0);
    assert!(told.is_signed_with(&secret) && told.body == got.body);

    // The same again, by whomever, gets the same answer and tells nobody.
    for signature in [
        plain_signature(&own, &body),
        plain_signature("the-new-secret", &body),
        plain_signature("the-old-secret", &body),
        plain_signature(&hex(&mac(b"the-old-secret", &task)), &body),
    ] {
        let again = call(&server, &token, &body, &[("x-webhook-signature", &signature)]).ok();
        assert_eq!(again["event_id"], json!(event));
    }
    // A late word changes nothing, and is told so.
    let late = completion(&task, "failed");
    let refused = call(&server, &token, &late, &[("x-webhook-signature", &plain_signature(&own, &late))]);
    assert_eq!(refused.refused(409), "conflict");
    assert!(refused.text.contains("has ended as 'success'"), "{refused:?}");
    let told = events(&server, &task);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((&told[0]["type"], &told[0]["id"]), (&json!("worker_completed"), &json!(event)));
    let filter = format!("/api/v1/webhooks/deliveries?task_id={task}");
    eventually("both deliveries", || {
        let all = server.get(&filter).ok();
        let items = all["items"].as_array().expect("items").clone();
        assert_eq!(items.len(), 2, "{all}");
        items.iter().all(|one| one["state"] == "delivered").then_some(())
    });
    assert_eq!((receiver.got().len(), endpoint.got().len()), (1, 1));
    let audit = server.get("/api/v1/audit?action=webhook.called").ok();
    let outcomes: Vec<_> =
        audit["items"].as_array().expect("items").iter().map(|entry| entry["outcome"].clone()).collect();
    assert_eq!(outcomes, ["accepted", "accepted", "accepted", "accepted", "accepted", "late"]);
    assert_eq!(audit["items"][0]["subject"], json!(task));
}

#[test]
fn a_call_that_is_forged_is_refused_before_anything_is_done() {
    let receiver = Receiver::start();
    let Some(mut server) = start(&[("AI_WORKER_WEBHOOK_SECRET", "the-secret")]) else { return };
    let (task, token) = given_task(&mut server, Some(&receiver.url()));
    let (other, other_token) = given_task(&mut server, None);
    let body = completion(&task, "success");
    let good = plain_signature("the-secret", &body);
    let sign = |body: &str| plain_signature("the-secret", body);
    // Without a signature, or with that of another body, secret or task.
    let other_own = hex(&mac(b"the-secret", &other));
    for signature in [
        String::new(),
        "sha256=".into(),
        good.replace("sha256=", ""),
        good.to_uppercase(),
        sign(&completion(&task, "failed")),
        plain_signature("guessed", &body),
        plain_signature(&other_own, &body),
    ] {
        let refused = call(&server, &token, &body, &[("x-webhook-signature", &signature)]);
        assert_eq!(refused.refused(401), "unauthenticated", "{signature}");
    }
    assert_eq!(call(&server, &token, &body, &[]).refused(401), "unauthenticated");
    assert_eq!(call(&server, &token, "not JSON", &[]).refused(401), "unauthenticated");
    // With the token of another task, or none. Whether a task is there cannot be told from the answer.
    let unknown = completion("task-aaaaaaaaaaaaaaaaaaaaaaaaaa", "success");
    for (token, body) in
        [("", &body), ("00", &body), (&other_token[..], &body), ("", &unknown), (&token[..], &unknown)]
    {
        let refused = call(&server, token, body, &[("x-webhook-signature", &sign(body))]);
        assert_eq!(refused.refused(403), "denied", "{token}");
        assert_eq!(
            refused.json()["error"]["message"],
            "the address that was called is not that of this task"
        );
    }
    // What is no completion.
    for body in ["", "{}", "[]", "nonsense", &completion(&task, "running"), &completion(&task, "done")] {
        let refused = call(&server, &token, body, &[("x-webhook-signature", &sign(body))]);
        assert_eq!(refused.refused(422), "invalid", "{body}");
    }
    for kind in ["text/plain", "", "application/x-www-form-urlencoded", "application/json; charset=latin1"] {
        let headers = [("x-webhook-signature", good.as_str()), ("content-type", kind)];
        assert_eq!(call(&server, &token, &body, &headers).refused(415), "invalid", "{kind}");
    }
    let large = completion(&task, &"x".repeat(70_000));
    assert_eq!(call(&server, &token, &large, &[]).refused(413), "invalid");
    assert_eq!(server.get(CALLED).status, 405);

    // Nothing of it happened.
    assert!(events(&server, &task).is_empty());
    assert_eq!(server.get("/api/v1/webhooks/deliveries").ok()["items"], json!([]));
    assert!(receiver.got().is_empty());
    let metrics = server.get("/metrics").text;
    for outcome in ["unsigned", "wrong_token", "not_a_completion"] {
        assert!(
            metrics.contains(&format!("cubicle_webhook_calls_total{{outcome=\"{outcome}\"}}")),
            "{metrics}"
        );
    }
    let audit = server.get("/api/v1/audit?action=webhook.called").ok();
    assert!(audit["items"].as_array().is_some_and(|items| !items.is_empty()), "{audit}");

    // By Standard Webhooks, in time.
    #[expect(clippy::disallowed_methods, reason = "a worker signs with the time of its own clock")]
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH).expect("it is later").as_secs();
    let standard = |time: u64| {
        let signature = STANDARD.encode(mac(b"the-secret", &format!("msg_1.{time}.{body}")));
        (time.to_string(), format!("v1,{signature}"))
    };
    for (time, status) in [(now - 3600, 401), (now + 3600, 401), (now, 200)] {
        let (time, signature) = standard(time);
        let headers = [
            ("webhook-id", "msg_1"),
            ("webhook-timestamp", &time[..]),
            ("webhook-signature", &signature[..]),
        ];
        assert_eq!(call(&server, &token, &body, &headers).status, status, "{time}");
    }
    assert_eq!(receiver.waits_for(1).len(), 1);
}

#[test]
fn without_a_secret_the_address_of_a_task_is_what_counts() {
    let Some(mut server) = start(&[("AI_WORKER_WEBHOOK_PATH", "/api/webhooks/done")]) else { return };
    let (task, token) = given_task(&mut server, None);
    let body = json!({ "task_id": task, "status": "timeout", "duration_seconds": 7, "output_files": [] })
        .to_string();
    assert_eq!(call(&server, "", &body, &[]).refused(403), "denied");
    let heard = call(&server, &token, &body, &[]).ok();
    // Under the other path as well.
    let path = format!("/api/webhooks/done?token={token}");
    let headers = [("content-type", "application/json; charset=UTF-8")];
    let again =
        server.request("POST", &path, body.as_bytes(), &With { key: Some(""), headers: &headers }).ok();
    assert_eq!(heard["event_id"], again["event_id"]);
    let told = events(&server, &task);
    let about = json!({ "event_type": "worker_completed", "source": "kubernetes", "task_id": task, "status": "timeout" });
    assert_eq!((told.len(), &told[0]["data"]), (1, &about));
}

#[test]
fn webhooks_of_a_tenant_are_its_own() {
    let Some(server) = start(&[]) else { return };
    let receiver = Receiver::start();
    let (id, _) = registered(&server, &receiver.url());
    let sent = tried(&server, &id);
    waits_for_state(&server, &sent, "delivered");
    let eve = server.key_of("others", "eve", &["read", "run", "manage", "act_for_others"]);
    let reader = server.key_of("default", "reader", &["read", "run"]);
    let nothing = json!({});
    for (method, path) in [
        ("GET", format!("/api/v1/webhooks/{id}")),
        ("DELETE", format!("/api/v1/webhooks/{id}")),
        ("PATCH", format!("/api/v1/webhooks/{id}")),
        ("POST", format!("/api/v1/webhooks/{id}/test")),
        ("GET", format!("/api/v1/webhooks/deliveries/{sent}")),
        ("POST", format!("/api/v1/webhooks/deliveries/{sent}/replay")),
    ] {
        assert_eq!(
            server.with_key(method, &path, &nothing, &eve).refused(404),
            "not_found",
            "{method} {path}"
        );
        assert_eq!(
            server.with_key(method, &path, &nothing, &reader).refused(403),
            "denied",
            "{method} {path}"
        );
    }
    for path in ["/api/v1/webhooks", "/api/v1/webhooks/deliveries"] {
        assert_eq!(server.with_key("GET", path, &nothing, &eve).ok()["items"], json!([]), "{path}");
    }
    let filter = format!("/api/v1/webhooks/deliveries?webhook_id={id}");
    assert_eq!(server.with_key("GET", &filter, &nothing, &eve).ok()["items"], json!([]));
    assert_eq!(receiver.got().len(), 1);
}
