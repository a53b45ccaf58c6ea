//! What a client asks to execute, checked before anything happens.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_model::ExecId;

use super::super::http::Refusal;
use super::super::spec::check_environment;
use super::language::Language;
use crate::wire::execute::{Execute, GIVEN_FILES_BYTES, LONGEST_CODE, MOST_GIVEN_FILES};

const DEFAULT_CWD: &str = "/workspace";
const LONGEST_SECONDS: f64 = 86_400.0;
const LONGEST_NAME: usize = 1024;
const LONGEST_PART: usize = 255;
const LONGEST_TOOL_NAME: usize = 200;
const LONGEST_ENVIRONMENT_NAME: usize = 64;
const MOST_REQUIREMENTS: usize = 500;
const LONGEST_REQUIREMENT: usize = 1000;

/// Code that can be tried: nothing in the request contradicts itself or is out of range.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    pub exec_id: Option<ExecId>,
    pub tool_name: Option<String>,
    pub code: String,
    pub language: Language,
    pub requirements: Vec<String>,
    pub env_name: Option<String>,
    pub python_index: Option<String>,
    pub cwd: String,
    pub env: BTreeMap<String, String>,
    pub stdin: Option<String>,
    pub timeout_nanos: Option<u64>,
    pub files: Vec<Given>,
    pub all_files: bool,
    pub warm: bool,
}

/// A file that comes with the code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given {
    /// Below the working directory; no part of it is empty, `.` or `..`.
    pub name: String,
    pub bytes: Vec<u8>,
}

pub fn parse(body: &[u8]) -> Result<Checked, Refusal> {
    let request: Execute = serde_json::from_slice(body)
        .map_err(|error| Refusal::invalid(format!("the body is not code to execute: {error}")))?;
    check(request)
}

fn check(request: Execute) -> Result<Checked, Refusal> {
    if request.code.len() > LONGEST_CODE {
        let message = format!("the code has {} bytes; {LONGEST_CODE} are possible", request.code.len());
        return Err(Refusal::new(413, "too_large", message).hint("send data as files"));
    }
    let language = Language::find(request.language.as_deref(), request.host.interpreter)?;
    let cwd = request.cwd.unwrap_or_else(|| DEFAULT_CWD.into());
    if !cwd.starts_with('/') || cwd.contains('\0') {
        return Err(Refusal::invalid(format!("the working directory {cwd:?} is not an absolute path")));
    }
    if request.tool_name.as_ref().is_some_and(|name| name.len() > LONGEST_TOOL_NAME) {
        return Err(Refusal::invalid(format!("tool_name is longer than {LONGEST_TOOL_NAME} bytes")));
    }
    check_environment(&request.env)?;
    if let Some(name) = &request.env_name {
        check_environment_name(name)?;
    }
    check_requirements(&request.requirements)?;
    if let Some(index) = &request.python_index {
        check_index(index)?;
    }
    Ok(Checked {
        exec_id: request.exec_id,
        tool_name: request.tool_name,
        code: request.code,
        language,
        requirements: request.requirements,
        env_name: request.env_name,
        python_index: request.python_index,
        cwd,
        env: request.env,
        stdin: request.stdin,
        timeout_nanos: request.timeout_seconds.map(timeout).transpose()?,
        files: decode(request.files)?,
        all_files: request.all_files,
        warm: request.host.warm,
    })
}

pub(in super::super) fn check_environment_name(name: &str) -> Result<(), Refusal> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts_plain = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if name.len() <= LONGEST_ENVIRONMENT_NAME && starts_plain && name.bytes().all(plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(80).collect();
    Err(Refusal::invalid(format!("{shown:?} cannot be the name of an environment"))
        .hint("use up to 64 letters, digits, '.', '_' and '-', and begin with a letter or a digit"))
}

pub(in super::super) fn check_requirements(requirements: &[String]) -> Result<(), Refusal> {
    if requirements.len() > MOST_REQUIREMENTS {
        let count = requirements.len();
        return Err(Refusal::invalid(format!("{count} requirements; {MOST_REQUIREMENTS} are possible")));
    }
    for requirement in requirements {
        let trimmed = requirement.trim();
        let shown: String = trimmed.chars().take(80).collect();
        if trimmed.is_empty() || requirement.len() > LONGEST_REQUIREMENT {
            return Err(Refusal::invalid(format!("the requirement {shown:?} is empty or too long")));
        }
        if trimmed.starts_with('-') || requirement.chars().any(char::is_control) {
            return Err(Refusal::invalid(format!(
                "{shown:?} is not a requirement but an option or a line of several"
            ))
            .hint("a requirement is a package with its versions, such as pandas>=2.0"));
        }
    }
    Ok(())
}

pub(in super::super) fn check_index(index: &str) -> Result<(), Refusal> {
    let has_scheme = index.starts_with("https://") || index.starts_with("http://");
    if has_scheme && !index.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Ok(());
    }
    Err(Refusal::invalid("python_index is not the address of a package index")
        .hint("it begins with https://"))
}

fn timeout(seconds: f64) -> Result<u64, Refusal> {
    if !seconds.is_finite() || seconds <= 0.0 || seconds > LONGEST_SECONDS {
        return Err(Refusal::invalid(format!("a timeout of {seconds} s is not possible"))
            .hint(format!("give a number of seconds above 0 and up to {LONGEST_SECONDS}, or none")));
    }
    // Rounding up keeps the shortest timeout one that can be over.
    Ok((seconds * 1e9).ceil() as u64)
}

fn decode(files: BTreeMap<String, String>) -> Result<Vec<Given>, Refusal> {
    if files.len() > MOST_GIVEN_FILES {
        let message = format!("{} files; {MOST_GIVEN_FILES} are possible", files.len());
        return Err(Refusal::new(413, "too_many_files", message).hint("send an archive with PUT /archive"));
    }
    // The sum is known before anything is decoded: four characters are three bytes.
    let bytes: u64 = files.values().map(|contents| contents.len() as u64 / 4 * 3).sum();
    if bytes > GIVEN_FILES_BYTES + 3 * MOST_GIVEN_FILES as u64 {
        let message =
            format!("the files have about {bytes} bytes together; {GIVEN_FILES_BYTES} are possible");
        return Err(Refusal::new(413, "too_large", message).hint("send large files with PUT /files/{path}"));
    }
    let mut given: Vec<Given> = Vec::with_capacity(files.len());
    for (name, contents) in files {
        check_name(&name)?;
        let bytes = STANDARD.decode(contents.as_bytes()).map_err(|error| {
            Refusal::new(400, "invalid_base64", format!("the contents of {name:?} are not base64: {error}"))
                .hint("encode with the standard alphabet and padding")
        })?;
        given.push(Given { name, bytes });
    }
    let names: std::collections::BTreeSet<&str> = given.iter().map(|file| file.name.as_str()).collect();
    for name in &names {
        let above = name.match_indices('/').map(|(at, _)| &name[..at]).find(|above| names.contains(above));
        if let Some(above) = above {
            return Err(Refusal::invalid(format!(
                "{above:?} cannot be both a file and the directory of {name:?}"
            )));
        }
    }
    Ok(given)
}

fn check_name(name: &str) -> Result<(), Refusal> {
    let refuse = |why: &str| {
        let shown: String = name.chars().take(80).collect();
        Err(Refusal::new(400, "invalid_file_name", format!("the file name {shown:?} {why}"))
            .hint("names are relative to the working directory, such as data/table.csv"))
    };
    if name.is_empty() {
        return refuse("is empty");
    }
    if name.starts_with('/') {
        return refuse("is absolute");
    }
    if name.len() > LONGEST_NAME || name.split('/').any(|part| part.len() > LONGEST_PART) {
        return refuse("is too long");
    }
    if name.contains('\0') {
        return refuse("has a zero byte");
    }
    if name.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return refuse("has a part that is empty, '.' or '..'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_executed_is_refused_with_the_reason() {
        let many: BTreeMap<String, String> = (0..1001).map(|n| (format!("f{n}"), String::new())).collect();
        let large = "A".repeat(45 * 1024 * 1024);
        let table = [
            (json!({}), 400, "invalid", "missing field `code`"),
            (json!({ "code": 1 }), 400, "invalid", "expected a string"),
            (json!({ "code": "", "extra": 1 }), 400, "invalid", "unknown field"),
            (json!({ "code": "x".repeat(LONGEST_CODE + 1) }), 413, "too_large", "the code has"),
            (json!({ "code": "", "files": { "a": "?" } }), 400, "invalid_base64", "\"a\" are not base64"),
            (json!({ "code": "", "files": { "a": "YQ" } }), 400, "invalid_base64", "not base64"),
            (json!({ "code": "", "files": { "a": "YQ==\n" } }), 400, "invalid_base64", "not base64"),
            (json!({ "code": "", "files": { "/etc/passwd": "" } }), 400, "invalid_file_name", "is absolute"),
            (json!({ "code": "", "files": { "../x": "" } }), 400, "invalid_file_name", "'..'"),
            (json!({ "code": "", "files": { "a/../../x": "" } }), 400, "invalid_file_name", "'..'"),
            (json!({ "code": "", "files": { "a//b": "" } }), 400, "invalid_file_name", "empty"),
            (json!({ "code": "", "files": { "a/": "" } }), 400, "invalid_file_name", "empty"),
            (json!({ "code": "", "files": { "./a": "" } }), 400, "invalid_file_name", "'.'"),
            (json!({ "code": "", "files": { "": "" } }), 400, "invalid_file_name", "is empty"),
            (json!({ "code": "", "files": { "a\u{0}": "" } }), 400, "invalid_file_name", "zero byte"),
            (json!({ "code": "", "files": { "n".repeat(256): "" } }), 400, "invalid_file_name", "too long"),
            (json!({ "code": "", "files": { "a": "", "a/b": "" } }), 400, "invalid", "both a file and"),
            (
                json!({ "code": "", "files": { "a": "", "a!": "", "a/b": "" } }),
                400,
                "invalid",
                "both a file and",
            ),
            (json!({ "code": "", "files": many }), 413, "too_many_files", "1001 files"),
            (json!({ "code": "", "files": { "a": large } }), 413, "too_large", "bytes together"),
            (json!({ "code": "", "language": "cobol" }), 422, "language_unknown", "\"cobol\""),
            (json!({ "code": "", "cwd": "relative" }), 400, "invalid", "not an absolute path"),
            (json!({ "code": "", "cwd": "/a\u{0}" }), 400, "invalid", "not an absolute path"),
            (json!({ "code": "", "env": { "A=B": "c" } }), 400, "invalid", "cannot be set"),
            (json!({ "code": "", "timeout_seconds": 0 }), 400, "invalid", "timeout of 0 s"),
            (json!({ "code": "", "timeout_seconds": -1 }), 400, "invalid", "timeout of -1 s"),
            (json!({ "code": "", "timeout_seconds": 86401 }), 400, "invalid", "timeout of 86401 s"),
            (json!({ "code": "", "env_name": "" }), 400, "invalid", "name of an environment"),
            (json!({ "code": "", "env_name": "../x" }), 400, "invalid", "name of an environment"),
            (json!({ "code": "", "requirements": [""] }), 400, "invalid", "is empty"),
            (json!({ "code": "", "requirements": ["--index-url=x"] }), 400, "invalid", "an option"),
            (json!({ "code": "", "requirements": ["a\nb"] }), 400, "invalid", "several"),
            (json!({ "code": "", "python_index": "file:///etc" }), 400, "invalid", "python_index"),
            (json!({ "code": "", "exec_id": "7" }), 400, "invalid", "is not an exec id"),
            (json!({ "code": "", "tool_name": "t".repeat(201) }), 400, "invalid", "tool_name"),
            (json!({ "code": "", "host": { "interpreter": [] } }), 400, "invalid", "interpreter"),
        ];
        for (body, status, code, message) in table {
            let text = body.to_string();
            let shown = &text[..text.len().min(120)];
            let refusal = parse(text.as_bytes()).expect_err(shown);
            assert_eq!((refusal.status, refusal.code), (status, code), "{shown}");
            assert!(refusal.message.contains(message), "{shown}: {}", refusal.message);
        }
    }

    #[test]
    fn what_is_not_said_has_the_usual_value() {
        let checked = parse(br#"{"code": "print(1)"}"#).unwrap();
        assert_eq!((checked.cwd.as_str(), checked.language), ("/workspace", Language::Python));
        assert_eq!((checked.timeout_nanos, checked.stdin, checked.all_files), (None, None, false));
    }

    #[test]
    fn files_arrive_decoded_under_their_names() {
        let checked = parse(br#"{"code": "", "files": {"d/a.txt": "aGk=", "b": ""}}"#).unwrap();
        let given = |name: &str, bytes: &[u8]| Given { name: name.into(), bytes: bytes.into() };
        assert_eq!(checked.files, [given("b", b""), given("d/a.txt", b"hi")]);
    }
}
