//! Tasks: a worker is given a prompt, and its work comes back. The agent is a shell here; real ones are in the suite of workers.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::client::{Reply, Server, With, eventually};
use crate::host::Host;

const ENDED: [&str; 4] = ["success", "failed", "timeout", "cancelled"];

/// A server that lets so many work at once.
fn server(most: &str) -> Option<Server> {
    let environment = [
        ("AI_WORKER_ENABLED", "true"),
        ("AI_WORKER_MAX_CONCURRENT", most),
        ("AI_WORKER_WEBHOOK_SECRET", "secret-of-the-operator"),
    ];
    Some(Server::start_on(Host::new()?, &["--pool-size", "1"], &environment))
}

fn shell(script: &str) -> Value {
    json!({ "task_description": "do it", "model": "custom", "command": ["sh", "-c", script] })
}

fn with(mut asked: Value, more: &Value) -> Value {
    let fields = more.as_object().expect("an object").clone();
    asked.as_object_mut().expect("an object").extend(fields);
    asked
}

fn spawn(server: &Server, asked: &Value) -> String {
    id_of(&server.post("/api/v1/tasks", asked).ok())
}

fn id_of(task: &Value) -> String {
    task["task_id"].as_str().expect("a task has an id").to_owned()
}

fn task(server: &Server, id: &str) -> Value {
    server.get(&format!("/api/v1/tasks/{id}")).ok()
}

fn ended(server: &Server, id: &str) -> Value {
    let path = format!("/api/v1/tasks/{id}?wait=20");
    eventually("the end of a task", || {
        let task = server.get(&path).ok();
        ENDED.iter().any(|status| task["status"] == *status).then_some(task)
    })
}

fn running(server: &Server, id: &str) {
    eventually("a task that runs", || (task(server, id)["status"] == "running").then_some(()));
}

/// A task that runs until a file is there, which only somebody else can make.
fn until_told() -> Value {
    shell(
        "echo begun > /task/output/begun; while [ ! -e /task/go ]; do sleep 0.05; done; echo done > /task/output/summary.md",
    )
}

fn begun(server: &Server, id: &str) {
    eventually("a worker at work", || {
        let files = server.get(&format!("/api/v1/tasks/{id}/files")).ok();
        files["files"].as_array().is_some_and(|files| !files.is_empty()).then_some(())
    });
}

fn go(server: &Server, tenant: &str, id: &str) {
    let path = server.host.data_dir().join("shared").join(tenant).join("tasks").join(id).join("go");
    std::fs::write(path, "").expect("the directory of a task is there");
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no '{name}' in {value}"))
}

fn share(server: &Server, path: &str, content: &str) {
    let target = format!("/api/v1/workspace/files/{path}");
    let written = server.request("PUT", &target, content.as_bytes(), &With::default());
    assert!((200..300).contains(&written.status), "{written:?}");
}

#[test]
fn a_task_is_done_in_a_sandbox_of_its_own_and_its_work_is_there_afterwards() {
    let Some(server) = server("3") else { return };
    share(&server, "data/spending.csv", "coffee,3\n");
    let script = "cp /task/context/data/spending.csv /task/output/copy.csv; mkdir /task/output/deep; \
        printf 'print(1)' > /task/output/deep/a.py; cat /task/prompt.md; \
        touch /workspace/shared/x 2>/dev/null && echo written; ls /task/..; echo all done > /task/output/summary.md";
    let asked = with(
        shell(script),
        &json!({ "context_files": ["data/spending.csv", "data/nowhere.csv"], "conversation_id": "c1",
            "interface_type": "telegram", "user_name": "Ada", "timeout_minutes": 5 }),
    );
    let made = server.post("/api/v1/tasks", &asked);
    assert_eq!(made.status, 201, "{made:?}");
    let made = made.ok();
    assert_eq!((&made["status"], &made["position"]), (&json!("pending"), &json!(1)));
    assert_eq!(made["context_files"], json!(["data/spending.csv"]));
    assert_eq!(made["missing_context_files"], json!(["data/nowhere.csv"]));
    let id = id_of(&made);
    let task = ended(&server, &id);
    assert_eq!(task["status"], "success", "{task}");
    assert_eq!((&task["exit_code"], &task["summary"]), (&json!(0), &json!("all done")));
    let said = ["conversation_id", "interface_type", "user_name"].map(|name| text(&task, name));
    assert_eq!(said, ["c1", "telegram", "Ada"]);
    assert_eq!(task["timeout_minutes"], 5);
    assert_eq!(text(&task, "job_name"), format!("ai-worker-{id}"));
    assert!(task["isolation"].is_string() && task["started_at"].is_string(), "{task}");

    // Its sandbox is gone, and what it made is not.
    eventually("the end of its lease", || {
        let lease = server.get(&format!("/api/v1/leases/{}", text(&task, "lease_id"))).ok();
        (lease["status"] == "RELEASED").then_some(())
    });
    let result = server.get(&format!("/api/v1/tasks/{id}/result?include=deep/a.py,copy.csv")).ok();
    let python = json!({ "name": "deep/a.py", "size": 8, "type": "text/x-python" });
    assert!(result["output_files"].as_array().expect("files").contains(&python), "{result}");
    assert_eq!(result["contents"]["deep/a.py"]["content"], "print(1)");
    assert_eq!(result["contents"]["copy.csv"]["content"], "coffee,3\n");
    assert_eq!(result["missing_context_files"], json!(["data/nowhere.csv"]));
    let events = server.get(&format!("/api/v1/tasks/{id}/events"));
    assert!(events.text.contains("do it") && !events.text.contains("\"written\""), "{events:?}");
    let next = events.header("x-next-offset").to_owned();
    assert_eq!(server.get(&format!("/api/v1/tasks/{id}/events?offset={next}")).text, "");
    let missing = server.get(&format!("/api/v1/tasks/{id}/result?include=../prompt.md"));
    assert!([400, 404].contains(&missing.status), "{missing:?}");
    let listed = server.get("/api/v1/tasks?conversation_id=c1&status=success").ok();
    assert_eq!(listed["items"][0]["task_id"], json!(id));
    assert_eq!(server.get("/api/v1/tasks?conversation_id=c2").ok()["items"], json!([]));
}

#[test]
fn its_end_is_told_once_by_an_event() {
    let Some(server) = server("3") else { return };
    let id = spawn(&server, &shell("true"));
    let task = ended(&server, &id);
    assert_eq!(task["status"], "success", "{task}");
    let told = events_of(&server, &id);
    let kinds: Vec<&str> = told.iter().map(|event| text(event, "type")).collect();
    assert_eq!(kinds, ["task.pending", "task.submitted", "task.running", "worker_completed"]);
    // Its worker told of it, too, through the gateway, and was believed by its signature.
    let audit = server.get(&format!("/api/v1/audit?subject={id}&action=webhook.called")).ok();
    assert_eq!(audit["items"][0]["outcome"], "accepted", "{audit}");
    let data = &told[3]["data"];
    for (name, value) in [
        ("event_type", "worker_completed"),
        ("source", "kubernetes"),
        ("task_id", &id),
        ("status", "success"),
    ] {
        assert_eq!(data[name], value, "{data}");
    }
}

/// Everything that was told of a task so far.
fn events_of(server: &Server, id: &str) -> Vec<Value> {
    use std::io::BufRead;
    let mut told = Vec::new();
    let stream = server.stream(&format!("/api/stream/{id}"), &[("accept", "text/event-stream")]);
    for line in stream.lines().map_while(Result::ok) {
        let Some(data) = line.strip_prefix("data: ") else { continue };
        let event: Value = serde_json::from_str(data).expect("data is JSON");
        let is_last = event["type"] == "worker_completed";
        told.push(event);
        if is_last {
            break;
        }
    }
    told
}

#[test]
fn whatever_goes_wrong_inside_is_a_failure_that_says_why() {
    let Some(server) = server("3") else { return };
    let table = [
        ("echo this went wrong >&2; exit 3", "3"),
        // The worker itself dies: the command's parent, and everything with it.
        ("echo last words; sleep 1; kill -9 $PPID; sleep 60", "without a word"),
        ("rm -rf /task/status.json; mkfifo /task/status.json; kill -9 $PPID; sleep 60", "status.json"),
        ("ln -s /etc/passwd /task/status.json; kill -9 $PPID; sleep 60", "status.json"),
        ("head -c 3000000 /dev/zero > /task/status.json; kill -9 $PPID; sleep 60", "status.json"),
        ("echo '{\"status\":\"success\"}' > /task/status.json; kill -9 $PPID; sleep 60", "status.json"),
    ];
    let ids = table.map(|(script, _)| spawn(&server, &shell(script)));
    for (id, (script, why)) in ids.iter().zip(table) {
        let task = ended(&server, id);
        assert_eq!(task["status"], "failed", "{script}: {task}");
        let message = text(&task, "error_message");
        assert!(message.contains(why), "{script}: {message}");
        if script.contains("last words") {
            assert!(message.contains("last words") && message.contains("signal 9"), "{message}");
        }
    }
    // A success that only the worker's files tell of.
    let forged = json!({ "status": "success", "started_at": "2025-01-25T10:00:00Z",
        "completed_at": "2025-01-25T10:00:01Z", "duration_seconds": 1, "exit_code": 0, "error_message": null });
    let script = format!("echo '{forged}' > /task/status.json; kill -9 $PPID; sleep 60");
    let task = ended(&server, &spawn(&server, &shell(&script)));
    assert_eq!(task["status"], "failed", "{task}");
    assert!(text(&task, "error_message").contains("told of a success, but"), "{task}");
}

#[test]
fn a_task_ends_when_its_time_is_over() {
    let Some(server) = server("3") else { return };
    // A minute is the least that a task can be given.
    let asked = with(shell("trap '' TERM; sleep 600 & wait; sleep 600"), &json!({ "timeout_minutes": 1 }));
    let id = spawn(&server, &asked);
    let path = format!("/api/v1/tasks/{id}?wait=50");
    let task = (0..4)
        .map(|_| server.get(&path).ok())
        .find(|task| ENDED.iter().any(|status| task["status"] == *status))
        .expect("it ends");
    assert_eq!(task["status"], "timeout", "{task}");
    assert!(task["error_message"].is_string(), "{task}");
}

#[test]
fn a_task_is_cancelled_before_and_while_it_runs() {
    let Some(server) = server("1") else { return };
    let (first, second) = (spawn(&server, &until_told()), spawn(&server, &until_told()));
    running(&server, &first);
    begun(&server, &first);
    let waiting = task(&server, &second);
    assert_eq!((&waiting["status"], &waiting["position"]), (&json!("pending"), &json!(1)));
    let cancelled = server.post(&format!("/api/v1/tasks/{second}/cancel"), &json!({})).ok();
    assert_eq!(cancelled["status"], "cancelled", "{cancelled}");
    let asked = server.post(&format!("/api/v1/tasks/{first}/cancel"), &json!({})).ok();
    assert!(asked["cancelled_at"].is_string(), "{asked}");
    let task = ended(&server, &first);
    assert_eq!(task["status"], "cancelled", "{task}");
    assert!(task["output_files"].to_string().contains("begun"), "what was made before is there: {task}");
    let again = server.post(&format!("/api/v1/tasks/{first}/cancel"), &json!({})).ok();
    assert_eq!(again["completed_at"], task["completed_at"]);
    // The worker is free again.
    assert_eq!(ended(&server, &spawn(&server, &shell("true")))["status"], "success");
}

#[test]
fn a_task_that_has_ended_is_done_again_as_another_one() {
    let Some(server) = server("1") else { return };
    share(&server, "note", "1");
    let script = "cat /task/context/note > /task/output/note; [ \"$(cat /task/output/note)\" = 2 ]";
    let id =
        spawn(&server, &with(shell(script), &json!({ "context_files": ["note"], "conversation_id": "c" })));
    let busy = server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({}));
    assert!(busy.status == 409 || task(&server, &id)["status"] == "failed", "{busy:?}");
    assert_eq!(ended(&server, &id)["status"], "failed");
    share(&server, "note", "2");
    let retried = server.post(&format!("/api/v1/tasks/{id}/retry"), &json!({}));
    assert_eq!(retried.status, 201);
    let retried = retried.ok();
    assert_eq!((&retried["retry_of"], &retried["attempt"]), (&json!(id), &json!(2)));
    assert_eq!(retried["conversation_id"], "c");
    assert_eq!(ended(&server, &id_of(&retried))["status"], "success");
    assert_eq!(task(&server, &id)["status"], "failed", "what was stays as it was");
}

#[test]
fn what_a_success_made_is_saved_where_the_next_task_finds_it() {
    let Some(server) = server("3") else { return };
    let save = json!({ "save_to_shared": true });
    let made = spawn(&server, &with(shell("echo word > /task/output/word.txt"), &save));
    let failed = spawn(&server, &with(shell("echo word > /task/output/word.txt; exit 1"), &save));
    let task = ended(&server, &made);
    let saved = format!("tasks/{made}/word.txt");
    assert_eq!(task["saved_files"], json!([saved]), "{task}");
    assert_eq!(ended(&server, &failed)["saved_files"], Value::Null);
    let script = format!("cat /workspace/shared/{saved} > /task/output/summary.md");
    assert_eq!(ended(&server, &spawn(&server, &shell(&script)))["summary"], "word");
    let read = server.get(&format!("/api/v1/workspace/files/{saved}"));
    assert_eq!((read.status, read.text.as_str()), (200, "word\n"));
}

#[test]
fn many_tasks_share_few_workers_fairly_and_each_is_done_once() {
    let Some(server) = server("3") else { return };
    let script = "echo once >> /task/count; cp /task/count /task/output/count; sleep 0.3";
    let ids: Vec<String> = (0..20)
        .map(|number| {
            let conversation = if number < 15 { "busy" } else { "quiet" };
            spawn(&server, &with(shell(script), &json!({ "conversation_id": conversation })))
        })
        .collect();
    let most = eventually("the end of all", || {
        let active = server.get("/api/v1/tasks?limit=1000").ok();
        let of = |status: &str| {
            active["items"].as_array().expect("items").iter().filter(|task| task["status"] == status).count()
        };
        assert!(of("submitted") + of("running") <= 3, "{active}");
        (of("success") == 20).then_some(active)
    });
    let items = most["items"].as_array().expect("items");
    assert_eq!(items.iter().map(id_of).collect::<BTreeSet<_>>(), ids.iter().cloned().collect());
    for id in &ids {
        let result = server.get(&format!("/api/v1/tasks/{id}/result?include=count")).ok();
        assert_eq!(result["contents"]["count"]["content"], "once\n", "{id}");
        let ends = events_of(&server, id).iter().filter(|event| event["type"] == "worker_completed").count();
        assert_eq!(ends, 1);
    }
    // Whoever came later in a quiet conversation did not wait for all of the busy one.
    let began = |id: &String| text(&task(&server, id), "started_at").to_owned();
    let last_quiet = ids[15..].iter().map(began).max().expect("five");
    let before = ids[..15].iter().map(began).filter(|at| *at < last_quiet).count();
    assert!(before < 15, "the quiet conversation was served last");
}

#[test]
fn a_task_sees_nothing_of_another_and_not_more_of_the_server_than_its_webhook() {
    let Some(server) = server("3") else { return };
    let other = spawn(&server, &until_told());
    begun(&server, &other);
    let own = server.address.trim_start_matches("http://").to_owned();
    let urls = [
        "http://cubicle.egress.internal/api/v1/tasks".to_owned(),
        "http://cubicle.egress.internal/health".to_owned(),
        "http://cubicle.egress.internal/api/webhooks/worker-complete/../../v1/tasks".to_owned(),
        format!("http://{own}/api/v1/tasks"),
    ];
    let codes = format!(
        "import urllib.request, urllib.error\n\
         open_ = urllib.request.build_opener(urllib.request.ProxyHandler({{'http': 'http://127.0.0.1:3128'}})).open\n\
         for url in {urls:?}:\n  for data in (None, b'{{}}'):\n    try: print(open_(url, data).status)\n    \
         except urllib.error.HTTPError as error: print(error.code)\n"
    );
    let script = format!(
        "ls /task /workspace/shared /mnt/worker / > /task/output/seen 2>&1; \
         find / -xdev -name '{other}' >> /task/output/seen 2>/dev/null; env > /task/output/env; \
         printf '%s' \"$0\" | env -u no_proxy -u NO_PROXY python3 - > /task/output/codes; echo ok > /task/output/summary.md"
    );
    let asked = with(shell(&script), &json!({ "command": ["sh", "-c", script, codes] }));
    let id = spawn(&server, &asked);
    assert_eq!(ended(&server, &id)["status"], "success");
    let result = server.get(&format!("/api/v1/tasks/{id}/result?include=seen,codes,env")).ok();
    let content = |name: &str| text(&result["contents"][name], "content").to_owned();
    assert!(!content("seen").contains(&other), "{}", content("seen"));
    assert!(content("seen").contains("prompt.md") && content("seen").contains("run-task"), "{result}");
    assert!(!content("env").contains(&server.admin_key()), "{result}");
    let codes = content("codes");
    let refused: Vec<&str> = codes.lines().collect();
    assert_eq!(refused, ["403"; 8], "{result}");
    go(&server, "default", &other);
    assert_eq!(ended(&server, &other)["status"], "success");
}

#[test]
fn tasks_of_others_are_not_seen() {
    let Some(server) = server("3") else { return };
    let id = spawn(&server, &shell("echo private > /task/output/f"));
    ended(&server, &id);
    let colleague = server.key_of("default", "colleague", &["read", "run"]);
    let stranger = server.key_of("others", "eve", &["read", "run", "manage", "act_for_others"]);
    for key in [&colleague, &stranger] {
        for (method, path) in [
            ("GET", ""),
            ("GET", "/result"),
            ("GET", "/files"),
            ("GET", "/files/f"),
            ("GET", "/events"),
            ("POST", "/cancel"),
            ("POST", "/retry"),
            ("POST", "/links/f"),
        ] {
            let answer = server.with_key(method, &format!("/api/v1/tasks/{id}{path}"), &json!({}), key);
            assert_eq!(answer.refused(404), "not_found", "{method} {path}");
        }
        assert_eq!(server.with_key("GET", "/api/v1/tasks", &json!({}), key).ok()["items"], json!([]));
    }
    let reader = server.key_of("default", "reader", &["read"]);
    assert_eq!(server.with_key("POST", "/api/v1/tasks", &shell("true"), &reader).refused(403), "denied");
}

#[test]
fn large_files_are_read_in_parts_and_by_links() {
    let Some(server) = server("3") else { return };
    let script = "mkdir -p '/task/output/a b'; seq 1 500000 > '/task/output/a b/numbers.txt'; \
        ln -s /etc/passwd /task/output/link; mkfifo /task/output/pipe";
    let id = spawn(&server, &shell(script));
    let task = ended(&server, &id);
    assert_eq!(task["output_files"].as_array().map(Vec::len), Some(1), "only files are files: {task}");
    let path = format!("/api/v1/tasks/{id}/files/a%20b/numbers.txt");
    let part = |path: &str, range: &str, key: Option<&str>| {
        server.request("GET", path, b"", &With { key, headers: &[("range", range)] })
    };
    let read = part(&path, "bytes=0-3", None);
    assert_eq!((read.status, read.text.as_str()), (206, "1\n2\n"));
    assert_eq!(part(&path, "bytes=-7", None).text, "500000\n");
    assert_eq!(part(&path, "bytes=99999999-", None).status, 416);
    assert_eq!(server.get(&path).text.len(), 3_388_895);
    for bad in ["link", "pipe", "..%2F..%2Fprompt.md", "nowhere"] {
        let refused = server.get(&format!("/api/v1/tasks/{id}/files/{bad}"));
        assert!([400, 403, 404].contains(&refused.status), "{bad}: {refused:?}");
        assert!(!refused.text.contains("root:"), "{bad}: {refused:?}");
    }
    let big = server.get(&format!("/api/v1/tasks/{id}/result?include=a%20b/numbers.txt")).ok();
    assert_eq!(big["contents"]["a b/numbers.txt"]["truncated"], true, "an answer has the beginning only");

    let link =
        server.post(&format!("/api/v1/tasks/{id}/links/a%20b/numbers.txt?seconds=60"), &json!({})).ok();
    let linked = text(&link, "url").strip_prefix(&server.address).expect("its own address").to_owned();
    assert_eq!(part(&linked, "bytes=0-1", Some("")).text, "1\n");
    let forged = linked.replace("signature=", "signature=0");
    let refused: Reply = part(&forged, "bytes=0-1", Some(""));
    assert_eq!(refused.refused(401), "unauthenticated");
    let elsewhere = linked.replace("numbers.txt", "other.txt");
    assert_eq!(part(&elsewhere, "bytes=0-1", Some("")).refused(401), "unauthenticated");
}

#[test]
fn a_task_goes_on_across_kill_and_restart() {
    let Some(mut server) = server("1") else { return };
    let (first, second) = (spawn(&server, &until_told()), spawn(&server, &shell("true")));
    running(&server, &first);
    begun(&server, &first);
    server.kill();
    server.start_again();
    assert_eq!(task(&server, &first)["status"], "running");
    assert_eq!(task(&server, &second)["status"], "pending");
    go(&server, "default", &first);
    assert_eq!(ended(&server, &first)["status"], "success");
    assert_eq!(ended(&server, &second)["status"], "success");
    // And one that ended while nobody looked.
    let third = spawn(&server, &until_told());
    begun(&server, &third);
    server.kill();
    go(&server, "default", &third);
    std::thread::sleep(std::time::Duration::from_millis(500));
    server.start_again();
    let third = ended(&server, &third);
    assert_eq!((&third["status"], &third["summary"]), (&json!("success"), &json!("done")), "{third}");
}

#[test]
fn a_task_whose_server_was_killed_at_any_point_is_done_once() {
    for step in [
        "task_directory_made",
        "task_noted",
        "task_submitted",
        "lease_acquired",
        "sandbox_bound",
        "task_placed",
        "exec_noted",
        "task_started",
        "task_worker_ended",
        "task_finished",
    ] {
        let Some(mut server) = server("1") else { return };
        server.kill();
        server.start_again_with(&[("CUBICLE_KILL_AT", &format!("{step}:1"))]);
        let script = "echo once >> /task/count; cp /task/count /task/output/count";
        let key = [("idempotency-key", "the-same")];
        let with_key = With { key: None, headers: &key };
        let asked = shell(script).to_string();
        // The answer may be lost with the server.
        let _ = ureq::post(format!("{}/api/v1/tasks", server.address))
            .header("authorization", format!("Bearer {}", server.admin_key()))
            .header("idempotency-key", "the-same")
            .send(asked.as_bytes());
        server.wait_for_death(step);
        server.start_again();
        let made = server.request("POST", "/api/v1/tasks", asked.as_bytes(), &with_key).ok();
        let task = ended(&server, &id_of(&made));
        assert_eq!(task["status"], "success", "{step}: {task}");
        let result = server.get(&format!("/api/v1/tasks/{}/result?include=count", id_of(&made))).ok();
        assert_eq!(result["contents"]["count"]["content"], "once\n", "{step}");
        assert_eq!(server.get("/api/v1/tasks").ok()["items"].as_array().map(Vec::len), Some(1), "{step}");
        let directories = std::fs::read_dir(server.host.data_dir().join("shared/default/tasks"));
        assert_eq!(directories.map_or(0, Iterator::count), 1, "{step}: nothing half-made stays");
        eventually("no lease is left", || {
            let leases = server.get("/api/v1/leases?status=ACTIVE").ok();
            (leases["items"] == json!([])).then_some(())
        });
    }
}

#[test]
fn a_request_that_cannot_be_done_is_refused_before_anything_is_made() {
    let Some(server) = server("3") else { return };
    let table = [
        (json!({ "task_description": " " }), 400, "task_description"),
        (json!({ "task_description": "x", "model": "gpt" }), 400, "'claude', 'gemini', 'custom'"),
        (json!({ "task_description": "x", "model": "custom" }), 400, "needs a 'command'"),
        (json!({ "task_description": "x", "command": ["true"] }), 400, "for the agent 'custom'"),
        (with(shell("true"), &json!({ "timeout_minutes": 0 })), 400, "1 to 120"),
        (with(shell("true"), &json!({ "timeout_minutes": 121 })), 400, "1 to 120"),
        (with(shell("true"), &json!({ "context_files": ["../../etc/passwd"] })), 400, ""),
        (with(shell("true"), &json!({ "template": "nowhere" })), 404, "template"),
        (with(shell("true"), &json!({ "notify_url": "file:///etc/passwd" })), 400, "notify_url"),
        (with(shell("true"), &json!({ "repo": "git@host:a/b" })), 400, "repo"),
        (with(shell("true"), &json!({ "max_cost_usd": -1 })), 400, "max_cost_usd"),
        (with(shell("true"), &json!({ "conversation_id": "x".repeat(256) })), 400, "conversation_id"),
        (with(shell("true"), &json!({ "surprise": 1 })), 400, "surprise"),
        (json!({ "task_description": "x" }), 403, "not installed"),
    ];
    for (asked, status, words) in table {
        let answer = server.post("/api/v1/tasks", &asked);
        answer.refused(status);
        assert!(answer.text.contains(words), "{asked}: {answer:?}");
    }
    assert_eq!(server.get("/api/v1/tasks").ok()["items"], json!([]));
    let directories = std::fs::read_dir(server.host.data_dir().join("shared/default/tasks"));
    assert_eq!(directories.map_or(0, Iterator::count), 0, "nothing half-made stays");
    let missing = server.post("/api/v1/tasks", &json!({ "task_description": "x" }));
    assert!(missing.text.contains("cubicle agents install claude"), "{missing:?}");
    assert_eq!(server.get("/api/v1/tasks/task-aaaaaaaaaaaaaaaaaaaaaaaaaa").refused(404), "not_found");
    assert_eq!(server.get("/api/v1/tasks?after=nonsense").refused(400), "invalid");
}

#[test]
fn without_workers_the_refusal_says_how_to_have_some() {
    let Some(server) = Server::start() else { return };
    let refused = server.post("/api/v1/tasks", &shell("true"));
    assert_eq!(refused.refused(403), "denied");
    let said = &refused.json()["error"]["hint"];
    for way in ["AI_WORKER_ENABLED=true", "cubicle up --workers"] {
        assert!(said.as_str().is_some_and(|hint| hint.contains(way)), "{refused:?}");
    }
}

#[test]
fn the_numbers_of_tasks_are_scraped_and_failures_in_a_row_are_an_event() {
    let Some(server) = server("3") else { return };
    for _ in 0..3 {
        let failing = with(shell("exit 1"), &json!({ "conversation_id": "c" }));
        assert_eq!(ended(&server, &spawn(&server, &failing))["status"], "failed");
    }
    ended(&server, &spawn(&server, &shell("true")));
    let metrics = server.get("/metrics").text;
    for line in [
        r#"cubicle_task_failures_total{agent="custom",status="failed"} 3"#,
        r#"cubicle_task_seconds_count{agent="custom",status="success"} 1"#,
        "cubicle_tasks_waiting 0",
        "cubicle_tasks_running 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let mut stream = server.stream("/api/v1/events?after=0", &[]);
    use std::io::BufRead;
    let mut line = String::new();
    while !line.contains("worker_failing") {
        line.clear();
        assert_ne!(stream.read_line(&mut line).expect("events can be read"), 0);
    }
}
