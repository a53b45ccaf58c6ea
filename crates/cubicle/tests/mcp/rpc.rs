//! A client that knows nothing of MCP but its messages.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::client::{BOUND, Server};
use crate::host::{BINARY, Host};

pub(crate) const CURRENT: &str = "2026-07-28";
pub(crate) const LEGACY: &str = "2025-11-25";

/// What is told of the client: once in the beginning, or with every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Legacy,
    Current,
}

pub(crate) const ERAS: [Era; 2] = [Era::Legacy, Era::Current];

impl Era {
    pub(crate) fn version(self) -> &'static str {
        if self == Self::Legacy { LEGACY } else { CURRENT }
    }

    /// A request, with what this era wants to be told in it.
    pub(crate) fn request(self, id: u64, method: &str, mut params: Value) -> Value {
        if self == Self::Current {
            let meta = &mut params["_meta"];
            meta["io.modelcontextprotocol/protocolVersion"] = json!(CURRENT);
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
            meta["io.modelcontextprotocol/clientInfo"] = json!({ "name": "test", "version": "1" });
        }
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
    }
}

pub(crate) fn initialize() -> Value {
    json!({ "protocolVersion": LEGACY, "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } })
}

/// A tool call, with a token for progress.
pub(crate) fn call(name: &str, arguments: Value) -> Value {
    json!({ "name": name, "arguments": arguments, "_meta": { "progressToken": "token" } })
}

/// What a call that must succeed answers.
pub(crate) fn answer(response: &Value) -> Value {
    let result = &response["result"];
    assert_ne!(result["isError"], true, "{response}");
    let text = result["content"][0]["text"].as_str().unwrap_or_default();
    assert_eq!(serde_json::from_str::<Value>(text).ok().as_ref(), Some(&result["structuredContent"]));
    result["structuredContent"].clone()
}

/// The code with which a call was refused.
pub(crate) fn refusal(response: &Value) -> String {
    assert_eq!(response["result"]["isError"], true, "{response}");
    response["result"]["_meta"]["cubicle/error"]["code"].as_str().unwrap_or_default().to_owned()
}

/// `cubicle mcp`, spoken to line by line.
pub(crate) struct Stdio_ {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    era: Era,
    last: u64,
}

impl Stdio_ {
    pub(crate) fn start(host: &Host, flags: &[&str], era: Era) -> Self {
        let mut command = host.command(BINARY, &[&["mcp"], flags].concat());
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the built program starts");
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let message = serde_json::from_str(&line).unwrap_or_else(|_| panic!("not JSON: {line}"));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        let mut client = Self { child, stdin, lines, era, last: 0 };
        if era == Era::Legacy {
            let (response, _) = client.ask("initialize", initialize());
            assert_eq!(response["result"]["protocolVersion"], LEGACY, "{response}");
            client.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        }
        client
    }

    pub(crate) fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("it is open");
        writeln!(stdin, "{message}").expect("the program reads");
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn begin(&mut self, method: &str, params: Value) -> u64 {
        self.last += 1;
        let request = self.era.request(self.last, method, params);
        self.send(&request);
        self.last
    }

    pub(crate) fn next(&self) -> Value {
        self.lines.recv_timeout(BOUND).expect("the program answers")
    }

    /// The answer to a request, and what came before it.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let id = self.begin(method, params);
        let mut before = Vec::new();
        loop {
            let message = self.next();
            if message["id"] == id {
                return (message, before);
            }
            before.push(message);
        }
    }

    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", call(name, arguments)).0
    }

    /// Hangs up.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }
}

impl Drop for Stdio_ {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `/mcp` of a server, every request over a connection of its own.
pub(crate) struct Http<'a> {
    server: &'a Server,
    era: Era,
    session: Option<String>,
    pub(crate) key: String,
    last: u64,
}

/// An answer that is still being read.
pub(crate) struct Streaming {
    pub(crate) status: u16,
    pub(crate) head: String,
    reader: BufReader<TcpStream>,
    chunk: usize,
    is_chunked: bool,
    left: usize,
}

impl<'a> Http<'a> {
    pub(crate) fn connect(server: &'a Server, era: Era, key: &str) -> Self {
        let mut client = Self { server, era, session: None, key: key.to_owned(), last: 0 };
        if era == Era::Legacy {
            let id = client.next_id();
            let mut response = client.post(&era.request(id, "initialize", initialize()), &[]);
            assert_eq!(response.status, 200, "{}", response.head);
            client.session = Some(response.header("mcp-session-id"));
            assert_eq!(response.message()["result"]["protocolVersion"], LEGACY);
            let ready = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
            assert_eq!(client.post(&ready, &[]).status, 202);
        }
        client
    }

    fn next_id(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sends a message with the headers that the era wants, and others.
    pub(crate) fn post(&self, message: &Value, more: &[(&str, &str)]) -> Streaming {
        let body = message.to_string();
        let host = self.server.address.trim_start_matches("http://").to_owned();
        let mut head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\naccept: application/json, \
             text/event-stream\r\ncontent-length: {}\r\n",
            body.len()
        );
        let mut header = |name: &str, value: &str| head.push_str(&format!("{name}: {value}\r\n"));
        if !self.key.is_empty() {
            header("authorization", &format!("Bearer {}", self.key));
        }
        if let Some(session) = &self.session {
            header("mcp-session-id", session);
        }
        if message["method"] != "initialize" {
            header("mcp-protocol-version", self.era.version());
        }
        if self.era == Era::Current {
            header("mcp-method", message["method"].as_str().unwrap_or_default());
            if let Some(name) = message["params"]["name"].as_str() {
                header("mcp-name", name);
            }
        }
        more.iter().for_each(|(name, value)| header(name, value));
        let mut stream = TcpStream::connect(&host).expect("the server listens");
        stream.set_read_timeout(Some(BOUND)).expect("a socket has a timeout");
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).expect("the server reads");
        Streaming::new(stream)
    }

    pub(crate) fn begin(&mut self, method: &str, params: Value) -> (u64, Streaming) {
        let id = self.next_id();
        (id, self.post(&self.era.request(id, method, params), &[]))
    }

    pub(crate) fn ask(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        let (id, mut response) = self.begin(method, params);
        // In the current era a method that is unknown is a page that is not there, too.
        assert!([200, 404].contains(&response.status), "{}", response.head);
        let mut before = Vec::new();
        loop {
            let message = response.message();
            if message["id"] == id {
                return (message, before);
            }
            before.push(message);
        }
    }

    pub(crate) fn tool(&mut self, name: &str, arguments: Value) -> Value {
        self.ask("tools/call", call(name, arguments)).0
    }
}

impl Streaming {
    fn new(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).expect("the server answers") > 0, "no answer: {head}");
        }
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut streaming = Self { status, head, reader, chunk: 0, is_chunked: false, left: 0 };
        streaming.is_chunked = streaming.header("transfer-encoding") == "chunked";
        streaming.left = streaming.header("content-length").parse().unwrap_or(0);
        streaming
    }

    pub(crate) fn header(&self, name: &str) -> String {
        let line = self.head.lines().find_map(|line| {
            let (given, value) = line.split_once(':')?;
            given.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        });
        line.unwrap_or_default()
    }

    /// One byte of the body; none at its end.
    fn byte(&mut self) -> Option<u8> {
        if self.is_chunked && self.chunk == 0 {
            let mut line = String::new();
            while line.trim().is_empty() {
                line.clear();
                if self.reader.read_line(&mut line).expect("the server goes on") == 0 {
                    return None;
                }
            }
            self.chunk = usize::from_str_radix(line.trim(), 16).expect("a chunk has a length");
            if self.chunk == 0 {
                return None;
            }
        }
        let left = if self.is_chunked { &mut self.chunk } else { &mut self.left };
        if *left == 0 {
            return None;
        }
        *left -= 1;
        let mut byte = [0];
        self.reader.read_exact(&mut byte).expect("the server goes on");
        Some(byte[0])
    }

    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        while let Some(byte) = self.byte() {
            if byte == b'\n' {
                return Some(String::from_utf8(line).expect("text"));
            }
            line.push(byte);
        }
        (!line.is_empty()).then(|| String::from_utf8(line).expect("text"))
    }

    /// The next message of the answer, whether it is one or a stream of them.
    pub(crate) fn message(&mut self) -> Value {
        let is_stream = self.header("content-type").starts_with("text/event-stream");
        while let Some(line) = self.line() {
            let text = match is_stream {
                true => line.strip_prefix("data:").map(str::trim).unwrap_or_default().to_owned(),
                false => line,
            };
            if !text.is_empty() {
                return serde_json::from_str(&text).unwrap_or_else(|_| panic!("not JSON: {text}"));
            }
        }
        panic!("the answer ended: {}", self.head)
    }
}

/// What both transports can do.
pub(crate) trait Mcp {
    fn asks(&mut self, method: &str, params: Value) -> (Value, Vec<Value>);
}

impl Mcp for Stdio_ {
    fn asks(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        self.ask(method, params)
    }
}

impl Mcp for Http<'_> {
    fn asks(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        self.ask(method, params)
    }
}

/// A job as an agent does it, over any transport.
pub(crate) fn does_a_job(client: &mut dyn Mcp) {
    let (listed, _) = client.asks("tools/list", json!({}));
    let names: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .expect("tools")
        .iter()
        .filter_map(|t| t["name"].as_str())
        .collect();
    assert_eq!(names.first(), Some(&"read_file"));
    assert_eq!(names.last(), Some(&"release_sandbox"));
    assert_eq!(client.asks("tools/list", json!({})).0["result"]["tools"], listed["result"]["tools"]);
    let mut tool = |name: &str, arguments: Value| client.asks("tools/call", call(name, arguments));
    let program = "import sys\nfor n in range(3):\n    print('row', n, flush=True)\nsys.exit(int('4'))\n";
    answer(&tool("write_file", json!({ "path": "src/job.py", "content": program })).0);
    let edited = json!({ "path": "src/job.py", "old_string": "int('4')", "new_string": "0" });
    assert_eq!(answer(&tool("edit_file", edited).0)["lines"], json!([4]));
    let patch = "--- a/src/job.py\n+++ b/src/job.py\n@@ -2,2 +2,2 @@\n-for n in range(3):\n+for n in range(2):\n     print('row', n, flush=True)\n";
    assert_eq!(answer(&tool("apply_patch", json!({ "patch": patch })).0)["files"][0]["added"], 1);
    assert_eq!(
        answer(&tool("glob", json!({ "pattern": "**/*.py" })).0)["paths"],
        json!(["/workspace/src/job.py"])
    );
    let found = answer(&tool("grep", json!({ "pattern": "range\\(2\\)" })).0);
    assert_eq!(found["matches"][0]["line"], 2);
    let read = json!({ "path": "src/job.py", "offset": 4, "line_numbers": true });
    assert_eq!(answer(&tool("read_file", read).0)["content"], "     4\tsys.exit(0)\n");
    let ran = answer(&tool("execute", json!({ "command": "python3 src/job.py; echo done >&2; exit 7" })).0);
    assert_eq!((&ran["stdout"], &ran["stderr"]), (&json!("row 0\nrow 1\n"), &json!("done\n")));
    assert_eq!((&ran["exit_code"], &ran["timed_out"]), (&json!(7), &json!(false)));
    let slow = answer(&tool("execute", json!({ "command": "sleep 60", "timeout": 0.3 })).0);
    assert_eq!(
        (&slow["exit_code"], &slow["timed_out"], &slow["ended_by"]),
        (&json!(124), &json!(true), &json!("timeout"))
    );
    let code = answer(
        &tool("run_code", json!({ "code": "print(open('in').read())", "files": { "in": "given" } })).0,
    );
    assert_eq!((&code["status"], &code["stdout"]), (&json!("success"), &json!("given\n")));
    let listed = answer(&tool("list_dir", json!({ "hidden": false })).0);
    let named = |name: &str| {
        let entries = listed["entries"].as_array().expect("entries");
        entries.iter().find(|entry| entry["path"] == format!("/workspace/{name}")).expect("it is there")["type"].clone()
    };
    assert_eq!((named("src"), named("in")), (json!("directory"), json!("file")));
    assert_eq!(answer(&tool("delete_file", json!({ "path": "in" })).0)["type"], "file");

    // What outlives the sandbox.
    answer(&tool("write_workspace", json!({ "path": "data/in.csv", "content": "a,b\n" })).0);
    assert_eq!(answer(&tool("read_workspace", json!({ "path": "data/in.csv" })).0)["content"], "a,b\n");
    let shared = answer(&tool("list_workspace", json!({})).0);
    assert_eq!(shared["entries"].as_array().map(Vec::len), Some(3), "{shared}");
    answer(&tool("move_workspace", json!({ "from": "data/in.csv", "to": "data/kept.csv" })).0);
    let found = answer(&tool("glob_workspace", json!({ "pattern": "**/*.csv" })).0);
    assert_eq!(found["entries"][0]["path"], "data/kept.csv");
    assert_eq!(answer(&tool("delete_workspace", json!({ "path": "data/kept.csv" })).0)["files"], 1);
    let skill = json!({ "name": "charts", "description": "Draws charts.", "content": "# How" });
    assert_eq!(answer(&tool("create_skill", skill).0)["path"], "skills/charts/SKILL.md");
    assert_eq!(answer(&tool("list_skills", json!({})).0)["skills"][0]["name"], "charts");
    assert_eq!(answer(&tool("get_skill", json!({ "name": "charts" })).0)["content"], "# How\n");
    let dot =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
    answer(
        &tool("write_workspace", json!({ "path": "data/dot.png", "content": dot, "encoding": "base64" })).0,
    );
    let shown = tool("read_workspace", json!({ "path": "data/dot.png" })).0;
    let picture = &shown["result"]["content"][1];
    assert_eq!(
        (&picture["type"], &picture["mimeType"], &picture["data"]),
        (&json!("image"), &json!("image/png"), &json!(dot)),
        "{shown}"
    );
    assert_eq!(shown["result"]["structuredContent"]["content"], Value::Null);

    // What goes on by itself.
    let begun = json!({ "command": "echo one; read line; echo $line; sleep 600", "stdin": "two\n", "background": true });
    let begun = answer(&tool("execute", begun).0);
    assert_eq!(begun["state"], "running");
    let (mut seen, mut seq) = (String::new(), json!(0));
    while !seen.contains("two") {
        let more = json!({ "exec_id": begun["exec_id"], "from_seq": seq, "wait_seconds": 30 });
        let more = answer(&tool("exec_output", more).0);
        seen.push_str(more["stdout"].as_str().expect("text"));
        seq = more["next_seq"].clone();
    }
    assert_eq!(seen, "one\ntwo\n");
    answer(&tool("exec_stop", json!({ "exec_id": begun["exec_id"], "grace_seconds": 0 })).0);
    let ended = json!({ "exec_id": begun["exec_id"], "from_seq": seq, "wait_seconds": 30 });
    let ended = answer(&tool("exec_output", ended).0);
    assert_eq!((&ended["state"], &ended["ended_by"]), (&json!("ended"), &json!("signal")), "{ended}");

    // Another sandbox has files of its own.
    let other = answer(&tool("create_sandbox", json!({})).0)["sandbox_id"].clone();
    assert_eq!(refusal(&tool("list_dir", json!({ "path": "src", "sandbox_id": other })).0), "not_found");
    assert_eq!(answer(&tool("list_sandboxes", json!({})).0)["sandboxes"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer(&tool("release_sandbox", json!({ "sandbox_id": other })).0)["released"], true);

    let table = [
        ("read_file", json!({ "path": "nothing" }), "not_found"),
        ("read_file", json!({}), "invalid_argument"),
        ("read_file", json!({ "path": "a", "nonsense": 1 }), "invalid_argument"),
        ("write_file", json!({ "path": "/proc/x", "content": "" }), "path_not_allowed"),
        ("edit_file", json!({ "path": "src/job.py", "old_string": "t", "new_string": "u" }), "not_unique"),
        ("delete_file", json!({ "path": "src" }), "not_empty"),
        ("list_dir", json!({ "path": "src/job.py" }), "not_a_directory"),
        ("glob", json!({ "pattern": "[" }), "invalid_pattern"),
        ("grep", json!({ "pattern": "(" }), "invalid_pattern"),
        ("apply_patch", json!({ "patch": "nothing" }), "invalid_patch"),
        ("execute", json!({ "command": " " }), "invalid_argument"),
        ("execute", json!({ "command": "true", "timeout": 0 }), "invalid_argument"),
        ("execute", json!({ "command": "true", "max_output_bytes": 0 }), "invalid_argument"),
        ("exec_output", json!({ "exec_id": "nonsense" }), "invalid_argument"),
        ("run_code", json!({ "code": "x", "language": "cobol" }), "language_unknown"),
        ("run_code", json!({ "code": "x", "files": { "../x": "" } }), "invalid_file_name"),
        ("read_file", json!({ "path": "a", "sandbox_id": "nonsense" }), "invalid_argument"),
        ("release_sandbox", json!({}), "invalid_argument"),
        ("read_workspace", json!({ "path": "nothing" }), "not_found"),
        ("read_workspace", json!({ "path": "../../etc/passwd" }), "invalid"),
        ("write_workspace", json!({ "path": "x" }), "invalid_argument"),
        ("create_skill", json!({ "name": "A", "description": "d", "content": "" }), "invalid"),
        ("create_sandbox", json!({ "nonsense": 1 }), "invalid_argument"),
    ];
    for (name, arguments, code) in table {
        let response = tool(name, arguments.clone()).0;
        let refused = refusal(&response);
        // A server says of code in its own words what its sandbox says in others.
        let own_words = name == "run_code" && refused == "invalid";
        assert!(refused == code || own_words, "{name} {arguments}: {refused}");
    }
    assert_eq!(client.asks("tools/call", call("nonsense", json!({}))).0["error"]["code"], -32602);
    assert_eq!(client.asks("resources/list", json!({})).0["error"]["code"], -32601);
}

/// Output comes while the command runs, in order, and before the answer.
pub(crate) fn tells_of_progress(client: &mut dyn Mcp) {
    let command = json!({ "command": "for n in 1 2 3; do echo line $n; sleep 0.3; done" });
    let (response, before) = client.asks("tools/call", call("execute", command));
    let told: Vec<&Value> = before.iter().filter(|m| m["method"] == "notifications/progress").collect();
    let text: String = told.iter().filter_map(|m| m["params"]["message"].as_str()).collect();
    assert_eq!(text, "line 1\nline 2\nline 3\n");
    assert_eq!(text, answer(&response)["stdout"].as_str().unwrap_or_default());
    assert_eq!(told.len(), 3, "each line when it was printed: {told:?}");
    let counts: Vec<f64> = told.iter().filter_map(|m| m["params"]["progress"].as_f64()).collect();
    assert!(counts.windows(2).all(|pair| pair[0] < pair[1]), "{counts:?}");
    assert!(told.iter().all(|m| m["params"]["progressToken"] == "token"));
}

/// How many processes of a tree that was given up are left, by the number that they all have.
pub(crate) fn left_of(client: &mut dyn Mcp, number: &str) -> String {
    let (first, rest) = number.split_at(1);
    let count = format!("ls /proc/[0-9]*/cmdline | xargs -r grep -sl '[{first}]{rest}' | wc -l");
    let (response, _) = client.asks("tools/call", call("execute", json!({ "command": count })));
    answer(&response)["stdout"].as_str().unwrap_or_default().trim().to_owned()
}

/// A tree whose processes can be told by a number.
pub(crate) fn tree(number: &str) -> Value {
    let command =
        format!("sleep {number} & (sleep {number}; true) & setsid sleep {number} & echo ready; wait");
    call("execute", json!({ "command": command }))
}
