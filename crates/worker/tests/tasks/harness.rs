//! A task in a directory of its own, run by the worker that was built.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cubicle_model::TaskId;
use cubicle_tests_scripted_model::{Script, ScriptedModel};
use cubicle_worker::event::What;
use cubicle_worker::{Assignment, Event, Status};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) struct Task {
    pub(crate) directory: TempDir,
    pub(crate) assignment: Assignment,
    pub(crate) variables: BTreeMap<String, String>,
    pub(crate) model: Option<ScriptedModel>,
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) status: Status,
    pub(crate) events: Vec<Event>,
    pub(crate) stderr: String,
    pub(crate) task: Task,
}

impl Task {
    pub(crate) fn new(agent: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("task")).unwrap();
        fs::create_dir(directory.path().join("shared")).unwrap();
        let prompt = directory.path().join("task/prompt.md");
        fs::write(&prompt, "Write hello.txt.").unwrap();
        let assignment = Assignment {
            task_id: TaskId::from_random([7; 16]),
            prompt: prompt.display().to_string(),
            webhook: None,
            agent: agent.into(),
            agent_home: None,
            model: None,
            command: Vec::new(),
            repo: None,
            timeout_seconds: 120,
            idle_seconds: 60,
            max_turns: None,
            max_tokens: None,
            max_cost_usd: None,
        };
        let below = |name: &str| directory.path().join(name).display().to_string();
        let variables = BTreeMap::from([
            ("PATH".to_owned(), path()),
            ("HOME".to_owned(), below("home")),
            ("TASK_STATE".to_owned(), below("state")),
            ("TASK_SHARED".to_owned(), below("shared")),
        ]);
        Self { directory, assignment, variables, model: None }
    }

    /// A shell as the agent.
    pub(crate) fn shell(script: &str) -> Self {
        let mut task = Self::new("custom");
        task.assignment.command = ["sh", "-c", script].map(str::to_owned).to_vec();
        task
    }

    /// A real agent that talks with a scripted model; none, and said, where it is not installed.
    pub(crate) fn with_agent(agent: &str, test: &str, script: Value) -> Option<Self> {
        let mut task = Self::new(agent);
        let home = std::env::var_os("CUBICLE_TEST_AGENTS").map(|agents| PathBuf::from(agents).join(agent));
        let Some(home) = home.filter(|home| home.exists()) else {
            skip(test, &format!("no {agent}: scripts/setup-ci gets it, and CUBICLE_TEST_AGENTS names where"));
            return None;
        };
        if agent == "gemini" && !has_node(&task.variables["PATH"]) {
            skip(test, "no node");
            return None;
        }
        task.assignment.agent_home = Some(home.display().to_string());
        let text = script.to_string().replace("{task}", &task.path().display().to_string());
        let script: Script = serde_json::from_str(&text).unwrap();
        let model = ScriptedModel::start(script).unwrap();
        for name in ["ANTHROPIC_BASE_URL", "GOOGLE_GEMINI_BASE_URL"] {
            task.variables.insert(name.into(), model.url());
        }
        task.variables.insert("CLAUDE_CODE_MAX_RETRIES".into(), "3".into());
        // Without a model named, it asks a smaller one which to take.
        task.assignment.model = (agent == "gemini").then(|| "gemini-2.5-flash".into());
        task.model = Some(model);
        Some(task)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("task")
    }

    /// A file in the task's directory.
    pub(crate) fn write(&self, name: &str, text: &str) {
        write(&self.path().join(name), text);
    }

    /// A file in the shared directory.
    pub(crate) fn share(&self, name: &str, text: &str) {
        write(&self.directory.path().join("shared").join(name), text);
    }

    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.args(self.assignment.arguments()).env_clear().envs(&self.variables);
        command.envs(self.assignment.variables());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn start(&self) -> Child {
        self.command(Path::new(env!("CARGO_BIN_EXE_run-task"))).spawn().unwrap()
    }

    pub(crate) fn run(self) -> Ran {
        let child = self.start();
        self.finish(child)
    }

    pub(crate) fn finish(self, child: Child) -> Ran {
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let status = fs::read(self.path().join("status.json"));
        let status = status.unwrap_or_else(|error| panic!("no status: {error}; {stderr}"));
        let events: Vec<Event> = output
            .stdout
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect();
        let kept = fs::read(self.path().join("events.jsonl")).unwrap();
        assert_eq!(String::from_utf8_lossy(&kept), String::from_utf8_lossy(&output.stdout));
        Ran {
            code: output.status.code(),
            status: serde_json::from_slice(&status).unwrap(),
            events,
            stderr,
            task: self,
        }
    }
}

impl Ran {
    /// Status, exit code of the worker, and a word of the message.
    #[track_caller]
    pub(crate) fn ended(&self, status: &str, code: i32, word: &str) {
        let message = self.status.error_message.clone().unwrap_or_default();
        assert_eq!(
            (self.status.status.name(), self.code),
            (status, Some(code)),
            "{message}; {}",
            self.tell()
        );
        assert!(message.contains(word), "'{word}' is not in: {message}");
        assert!(matches!(self.events.last().unwrap().what, What::Result { .. }), "{}", self.tell());
    }

    pub(crate) fn tell(&self) -> String {
        let events: Vec<_> = self.events.iter().map(|event| format!("{:?}", event.what)).collect();
        format!("{}\n{}", self.stderr, events.join("\n"))
    }

    pub(crate) fn kinds(&self) -> Vec<String> {
        let kind = |event: &Event| serde_json::to_value(event).unwrap()["type"].as_str().unwrap().to_owned();
        self.events.iter().map(kind).collect()
    }

    pub(crate) fn output(&self, name: &str) -> String {
        let path = self.task.path().join("output").join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}; {}", self.tell()))
    }

    /// What was asked of the model in the course of the work, without what is asked on the side.
    pub(crate) fn requests(&self) -> usize {
        let requests = self.task.model.as_ref().unwrap().requests();
        requests.iter().filter(|request| request.method == "POST" && !request.body["tools"].is_null()).count()
    }
}

/// A tool call in both dialects that writes a file below the task's directory.
pub(crate) fn writes(name: &str, content: &str) -> Value {
    let input = json!({"file_path": format!("{{task}}/{name}"), "content": content});
    json!({"claude": {"name": "Write", "input": input}, "gemini": {"name": "write_file", "input": input}})
}

pub(crate) fn shell_call(command: &str) -> Value {
    let input = json!({"command": command, "description": "test"});
    json!({"claude": {"name": "Bash", "input": input}, "gemini": {"name": "run_shell_command", "input": input}})
}

/// A job done in two steps, with a summary.
pub(crate) fn good_steps() -> Value {
    json!([
        {"text": "I write.", "tools": [writes("output/hello.txt", "hello\n")]},
        {"text": "I count.", "tools": [shell_call("wc -c < {task}/output/hello.txt > {task}/output/count.txt")]},
        {"text": "I sum up.", "tools": [writes("output/summary.md", "Wrote and counted.\n")]},
        {"text": "All done."},
    ])
}

/// Waits for something that must come.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..6000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain: {what}");
}

pub(crate) fn terminate(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
}

pub(crate) fn skip(test: &str, why: &str) {
    _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

pub(crate) fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// For everybody.
pub(crate) fn open_up(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// With the node of the test set-up behind that of the host.
fn path() -> String {
    let mut path = "/usr/local/bin:/usr/bin:/bin".to_owned();
    if let Some(mcp) = std::env::var_os("CUBICLE_TEST_MCP") {
        path.push_str(&format!(":{}", Path::new(&mcp).join("node/bin").display()));
    }
    path
}

fn has_node(path: &str) -> bool {
    path.split(':').any(|directory| Path::new(directory).join("node").exists())
}
