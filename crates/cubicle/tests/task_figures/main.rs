//! What tasks of AI workers cost, as a table; see bench/README.md. `CUBICLE_TASK_FIGURES=1` measures, `CUBICLE_TASK_PROGRAM` names
//! the program that is measured, which should be a release build. Nothing here asserts a time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cubicle_tests_scripted_model::{Script, ScriptedModel};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const BOUND: Duration = Duration::from_secs(120);
const SAMPLES: usize = 20;
const CLAUDE_SAMPLES: usize = 7;
const QUEUED: usize = 100;
const SLOTS: usize = 8;
/// Says when it began, and does nothing else.
const SAYS_WHEN: &str = "date +%s%N > /task/output/at; echo done > /task/output/summary.md";

fn variable(name: &str) -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the measurement says what it is to do")]
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

#[expect(clippy::disallowed_methods, reason = "a measurement starts what it measures")]
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}

struct Server {
    program: PathBuf,
    directory: tempfile::TempDir,
    child: Child,
    address: String,
    agent: ureq::Agent,
}

impl Server {
    fn start(variables: &[(&str, &str)]) -> Self {
        let program = variable("CUBICLE_TASK_PROGRAM")
            .map_or_else(|| env!("CARGO_BIN_EXE_cubicle").into(), PathBuf::from);
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let readable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), readable).expect("the directory is ours");
        let mut server = command(&program);
        server.args(["up", "--workers", "--without-keys", "--listen", "127.0.0.1:0"]);
        server.env("CUBICLE_DATA_DIR", directory.path().join("data")).env("CUBICLE_LOG", "error");
        server.envs(variables.iter().copied());
        let mut child = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let child_ref = child.as_mut().expect("the program starts");
        let mut said = BufReader::new(child_ref.stderr.take().expect("stderr is piped"));
        let address = loop {
            let mut line = String::new();
            assert_ne!(
                said.read_line(&mut line).expect("stderr can be read"),
                0,
                "the server did not come up"
            );
            if let Some((_, address)) = line.trim().split_once(" is up at ") {
                break address.to_owned();
            }
        };
        std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
        let agent = ureq::Agent::config_builder().timeout_global(Some(BOUND)).build().into();
        Self { program, directory, child: child.expect("it was there"), address, agent }
    }

    fn cubicle(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = command(&self.program);
        command.env("CUBICLE_DATA_DIR", self.directory.path().join("data"));
        command.args(arguments).output().expect("the program starts")
    }

    fn spawn(&self, asked: &Value) -> String {
        let url = format!("{}/api/v1/tasks", self.address);
        let answer = self.agent.post(&url).header("content-type", "application/json").send(asked.to_string());
        let answer = answer.expect("a task is taken").into_body().read_to_string().expect("an answer");
        let task: Value = serde_json::from_str(&answer).expect("JSON");
        task["task_id"].as_str().expect("an id").to_owned()
    }

    fn get(&self, path: &str) -> String {
        let answer = self.agent.get(format!("{}{path}", self.address)).call();
        answer.expect("an answer").into_body().read_to_string().expect("text")
    }

    fn ended(&self, task: &str) -> Value {
        let from = Instant::now();
        loop {
            let task: Value =
                serde_json::from_str(&self.get(&format!("/api/v1/tasks/{task}?wait=30"))).expect("JSON");
            match task["status"].as_str().expect("a status") {
                "pending" | "submitted" | "running" => assert!(from.elapsed() < BOUND, "{task}"),
                "success" => return task,
                _ => panic!("{task}"),
            }
        }
    }

    fn file(&self, task: &str, name: &str) -> String {
        self.get(&format!("/api/v1/tasks/{task}/files/{name}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let pid = Pid::from_raw(self.child.id() as i32).expect("a child has a pid");
        let _ = kill_process(pid, Signal::TERM);
        let _ = self.child.wait();
        self.cubicle(&["rm", "--all"]);
        self.cubicle(&["gc"]);
    }
}

fn now() -> f64 {
    #[expect(clippy::disallowed_methods, reason = "compared with what 'date' says")]
    let now = SystemTime::now();
    now.duration_since(UNIX_EPOCH).expect("the clock is set").as_secs_f64() * 1e3
}

fn milliseconds(nanoseconds: &str) -> f64 {
    nanoseconds.trim().parse::<f64>().expect("a number") / 1e6
}

fn p50(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[(samples.len() - 1) / 2]
}

/// Takes webhooks, and says when each came.
fn receiver() -> (String, Receiver<f64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback");
    let url = format!("http://{}/hook", listener.local_addr().expect("an address"));
    let (told, times) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = told.send(take(stream));
        }
    });
    (url, times)
}

fn take(mut stream: TcpStream) -> f64 {
    let mut request = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let count = stream.read(&mut piece).unwrap_or(0);
        request.extend_from_slice(&piece[..count]);
        let head_ends = request.windows(4).position(|four| four == b"\r\n\r\n");
        let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
        let length =
            text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse::<usize>().ok());
        if count == 0 || head_ends.is_some_and(|end| request.len() >= end + 4 + length.unwrap_or(0)) {
            break;
        }
    }
    let at = now();
    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    at
}

/// How long the program of the agent itself takes to start.
fn own_start() -> f64 {
    let mut samples: Vec<f64> = (0..SAMPLES)
        .map(|_| {
            let before = now();
            let said = command("sh").args(["-c", "date +%s%N"]).output().expect("a shell").stdout;
            milliseconds(&String::from_utf8_lossy(&said)) - before
        })
        .collect();
    p50(&mut samples)
}

fn spawn_and_webhook(rows: &mut Vec<String>) {
    let server = Server::start(&[("CUBICLE_WEBHOOKS_ALLOW", "127.0.0.1")]);
    let (url, times) = receiver();
    let own = own_start();
    let (mut starts, mut deliveries) = (Vec::new(), Vec::new());
    for round in 0..SAMPLES + 3 {
        std::thread::sleep(Duration::from_millis(1500));
        let before = now();
        let asked = json!({ "task_description": "say when", "model": "custom", "notify_url": url,
            "command": ["sh", "-c", SAYS_WHEN] });
        let task = server.spawn(&asked);
        server.ended(&task);
        let at = milliseconds(&server.file(&task, "at"));
        let told = times.recv_timeout(BOUND).expect("a webhook");
        if round >= 3 {
            starts.push(at - before - own);
            deliveries.push(told - at);
        }
    }
    rows.push(row(
        "task.spawn",
        "spawn → agent started, above the start of the agent itself",
        p50(&mut starts),
        "ms",
        15.0,
    ));
    rows.push(row(
        "task.webhook",
        "last act of the agent → webhook delivered on loopback",
        p50(&mut deliveries),
        "ms",
        50.0,
    ));
}

fn queue(rows: &mut Vec<String>) {
    let slots = SLOTS.to_string();
    let server = Server::start(&[("AI_WORKER_MAX_CONCURRENT", &slots), ("CUBICLE_CAPACITY", "50")]);
    std::thread::sleep(Duration::from_secs(2));
    let asked = json!({ "task_description": "wait", "model": "custom",
        "command": ["sh", "-c", "sleep 1; echo x >> /task/output/count; echo done > /task/output/summary.md"] });
    let from = Instant::now();
    let tasks: Vec<String> = (0..QUEUED).map(|_| server.spawn(&asked)).collect();
    for task in &tasks {
        server.ended(task);
    }
    let took = from.elapsed().as_secs_f64();
    for task in &tasks {
        assert_eq!(server.file(task, "count"), "x\n", "{task} ran once");
    }
    let ideal = QUEUED.div_ceil(SLOTS) as f64;
    rows.push(row(
        "task.queue",
        "100 tasks of a second each on 8 workers ÷ the ideal time",
        took / ideal,
        "x",
        1.5,
    ));
}

/// The installed Claude Code against a model that follows a script, directly and as a task.
fn overhead(rows: &mut Vec<String>) {
    let Some(agents) = variable("CUBICLE_TEST_AGENTS") else {
        rows.push("| task.overhead | skipped: CUBICLE_TEST_AGENTS is not set: run scripts/setup-ci | - | - | - | - |".into());
        return;
    };
    let claude = Path::new(&agents).join("claude");
    let script = |directory: &str| {
        let write = format!("echo done > {directory}/summary.md");
        let script = json!({ "steps": [
            { "tools": [{ "claude": { "name": "Bash", "input": { "command": write, "description": "write" } } }] },
            { "text": "done" }] });
        serde_json::from_value::<Script>(script).expect("a script")
    };
    let scratch = tempfile::tempdir().expect("a temporary directory can be made");
    let model = ScriptedModel::start(script(&scratch.path().display().to_string())).expect("loopback");
    let mut direct: Vec<f64> = (0..CLAUDE_SAMPLES + 1)
        .map(|_| {
            let from = Instant::now();
            let mut run = command(claude.join("claude"));
            run.args([
                "-p",
                "write",
                "--output-format",
                "stream-json",
                "--verbose",
                "--dangerously-skip-permissions",
            ]);
            // As `run-task` starts it.
            run.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("SHELL", "/bin/bash");
            for (name, part) in
                [("HOME", ""), ("CLAUDE_CONFIG_DIR", "state"), ("CLAUDE_CODE_TMPDIR", ""), ("TMPDIR", "")]
            {
                run.env(name, scratch.path().join(part));
            }
            for name in ["IS_SANDBOX", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "DISABLE_AUTOUPDATER"] {
                run.env(name, "1");
            }
            run.env("ANTHROPIC_BASE_URL", model.url()).env("ANTHROPIC_API_KEY", "none");
            run.current_dir(scratch.path());
            let run = run.stdin(Stdio::null()).output().expect("Claude Code starts");
            assert!(run.status.success(), "{run:?}");
            from.elapsed().as_secs_f64() * 1e3
        })
        .skip(1)
        .collect();
    let model = ScriptedModel::start(script("/task/output")).expect("loopback");
    let server = Server::start(&[]);
    server.model_is(&model, &claude);
    let mut through: Vec<f64> = (0..CLAUDE_SAMPLES + 1)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(1500));
            let from = Instant::now();
            server.ended(&server.spawn(&json!({ "task_description": "write" })));
            from.elapsed().as_secs_f64() * 1e3
        })
        .skip(1)
        .collect();
    let (direct, through) = (p50(&mut direct), p50(&mut through));
    let what =
        format!("a scripted task of Claude Code ÷ the same run directly ({through:.0} ms, {direct:.0} ms)");
    rows.push(row("task.overhead", &what, through / direct, "x", 1.15));
}

impl Server {
    /// Lets Claude Code of this server talk to a model on loopback.
    fn model_is(&self, model: &ScriptedModel, claude: &Path) {
        let installed =
            self.cubicle(&["agents", "install", "claude", "--from", &claude.display().to_string()]);
        assert!(installed.status.success(), "{installed:?}");
        let port = model.address().port();
        let bound = json!({ "value": "sk-ant-none", "bindings": [
            { "host": "localhost", "port": port, "form": "header:x-api-key", "base": "anthropic", "even_plain": true }] });
        let secret = self.agent.put(format!("{}/api/v1/secrets/ANTHROPIC_API_KEY", self.address));
        secret.header("content-type", "application/json").send(bound.to_string()).expect("a secret is kept");
        let text = self.get("/api/v1/templates/worker");
        let mut template: Value = serde_json::from_str(&text).expect("JSON");
        template["recipe"]["egress"] = format!("allowlist\nallow http://localhost:{port} private").into();
        let put = self.agent.put(format!("{}/api/v1/templates/worker?shared=true", self.address));
        put.header("content-type", "application/json")
            .send(template["recipe"].to_string())
            .expect("a template is kept");
    }
}

fn row(id: &str, what: &str, p50: f64, unit: &str, goal: f64) -> String {
    let met = if p50 <= goal { "yes" } else { "NO" };
    format!("| {id} | {what} | {p50:.2} | {unit} | <= {goal} | {met} |")
}

#[test]
fn what_tasks_cost() {
    if variable("CUBICLE_TASK_FIGURES").is_none() {
        let why = "skipped: what_tasks_cost: it measures, by 'make bench-tasks'";
        let _ = writeln!(std::io::stderr(), "{why}");
        return;
    }
    let mut rows = vec!["| id | what | p50 | unit | goal | met |\n|---|---|---:|---|---|---|".to_owned()];
    spawn_and_webhook(&mut rows);
    queue(&mut rows);
    overhead(&mut rows);
    let _ = writeln!(std::io::stderr(), "{}", rows.join("\n"));
}
