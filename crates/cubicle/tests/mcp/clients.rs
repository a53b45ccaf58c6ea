//! Clients that others have written: the SDK for Python, the conformance suite of the protocol, and Claude Code.
//!
//! `CUBICLE_TEST_MCP` names the directory in which scripts/setup-ci has installed the first two.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;

use crate::client::Server;
use crate::host::{BINARY, Host};

fn variable(name: &str) -> Option<PathBuf> {
    #[expect(clippy::disallowed_methods, reason = "whoever starts the test says what it is to do")]
    std::env::var_os(name).filter(|text| !text.is_empty()).map(PathBuf::from)
}

fn skipped(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// Something that scripts/setup-ci has installed.
fn installed(test: &str, path: &str) -> Option<PathBuf> {
    let found =
        variable("CUBICLE_TEST_MCP").map(|directory| directory.join(path)).filter(|path| path.exists());
    if found.is_none() {
        skipped(test, &format!("CUBICLE_TEST_MCP has no {path}; scripts/setup-ci installs it"));
    }
    found
}

fn beside(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp").join(name)
}

fn run(command: &mut Command) -> Output {
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null()).output().expect("the program starts")
}

fn succeeded(output: &Output) {
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn the_python_sdk_runs_a_job_over_stdio() {
    let test = "the_python_sdk_runs_a_job_over_stdio";
    let Some(python) = installed(test, "bin/python") else { return };
    let Some(host) = Host::new() else { return };
    let python = python.display().to_string();
    succeeded(&run(host.command(&python, &[]).arg(beside("client.py")).args(["stdio", BINARY])));
}

#[test]
fn the_python_sdk_runs_a_job_over_http() {
    let test = "the_python_sdk_runs_a_job_over_http";
    let Some(python) = installed(test, "bin/python") else { return };
    let Some(server) = Server::start() else { return };
    let (python, address) = (python.display().to_string(), format!("{}/mcp", server.address));
    let mut command = server.host.command(&python, &[]);
    succeeded(&run(command.arg(beside("client.py")).args(["http", &address, &server.admin_key()])));
}

/// Scenarios of the suite that ask for nothing but what a server of tools has. The checks that fail want fixtures (tools that
/// need a client's capability, or write to its log), or lists that are not offered; docs/guide/mcp.md tells of them.
const SCENARIOS: [(&str, u32, u32); 9] = [
    ("server-initialize", 3, 0),
    ("server-session-lifecycle", 3, 0),
    ("ping", 2, 0),
    ("tools-list", 3, 0),
    ("dns-rebinding-protection", 2, 0),
    ("server-sse-multiple-streams", 2, 0),
    ("http-header-validation", 14, 0),
    ("server-stateless", 21, 4),
    ("caching", 4, 3),
];

#[test]
fn the_conformance_suite_passes_as_recorded() {
    let test = "the_conformance_suite_passes_as_recorded";
    let Some(suite) = installed(test, "node_modules/.bin/conformance") else { return };
    let Some(node) = installed(test, "node/bin/node") else { return };
    // The suite sends no keys.
    let Some(server) = Server::start_with(&["--without-keys", "--pool-size", "1"]) else { return };
    for (scenario, passed, failed) in SCENARIOS {
        let mut command = server.host.command(&node.display().to_string(), &[]);
        command.arg(&suite).args([
            "server",
            "--url",
            &format!("{}/mcp", server.address),
            "--scenario",
            scenario,
        ]);
        // It keeps notes where it is started.
        let output = run(command.current_dir(server.host.scratch()));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let expected = format!("Passed: {passed}/{}, {failed} failed", passed + failed);
        assert!(said.contains(&expected), "{scenario}: not '{expected}', but\n{said}");
        let _ = writeln!(std::io::stderr(), "conformance: {scenario}: {expected}");
    }
}

/// `CUBICLE_TEST_CLAUDE` names the program; the model that it asks is a script.
#[test]
fn claude_code_does_a_job_through_the_tools() {
    let test = "claude_code_does_a_job_through_the_tools";
    let Some(claude) = variable("CUBICLE_TEST_CLAUDE").filter(|path| path.exists()) else {
        return skipped(test, "CUBICLE_TEST_CLAUDE names no program");
    };
    let Some(server) = Server::start() else { return };
    let scratch = server.host.scratch();
    #[expect(clippy::disallowed_methods, reason = "a black-box test starts another program")]
    let mut model = Command::new("/usr/bin/python3")
        .arg(beside("scripted_model.py"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python starts");
    let mut port = String::new();
    let mut reader = std::io::BufReader::new(model.stdout.take().expect("stdout is piped"));
    std::io::BufRead::read_line(&mut reader, &mut port).expect("it says where it listens");
    let config = scratch.join("mcp.json");
    let remote = json!({
        "type": "http",
        "url": format!("{}/mcp", server.address),
        "headers": { "Authorization": format!("Bearer {}", server.admin_key()) },
    });
    std::fs::write(&config, json!({ "mcpServers": { "cubicle": remote } }).to_string())
        .expect("scratch is ours");
    let mut command = server.host.command(&claude.display().to_string(), &["-p", "make the file"]);
    command.args(["--output-format", "json", "--tools", "", "--strict-mcp-config", "--mcp-config"]);
    command.arg(&config).args(["--allowedTools", "mcp__cubicle__write_file,mcp__cubicle__execute"]);
    command.env("ANTHROPIC_BASE_URL", format!("http://127.0.0.1:{}", port.trim()));
    command.envs([
        ("ANTHROPIC_API_KEY", "x"),
        ("ENABLE_TOOL_SEARCH", "false"),
        ("CLAUDE_CODE_MAX_RETRIES", "1"),
    ]);
    command.env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    for name in ["CLAUDE_CONFIG_DIR", "TMPDIR", "CLAUDE_CODE_TMPDIR", "HOME"] {
        command.env(name, scratch);
    }
    let output = run(command.current_dir(scratch));
    let _ = model.kill();
    let _ = model.wait();
    succeeded(&output);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("the tool said 42"), "{said}");
    let execs = server.get("/api/v1/execs").ok();
    assert_eq!(execs["items"][0]["command"], "cat made-by-claude", "{execs}");
}
