//! What a bench needs of one sandbox, over its guest.

use std::time::Duration;

use async_trait::async_trait;
use cubicle_guest::client::{ClientError, Event, ExecStream, Guest, WriteFile};
use cubicle_guest::wire::execute::{Execute, Produced};
use cubicle_model::{Command, ExecId, ExecSpec, Kind, Stdin};
use serde_json::Value;

use crate::bench::{Follow, Output, What};
use crate::error::ToolError;

/// A sandbox without anybody in between.
#[derive(Debug, Clone)]
pub struct OverGuest(pub Guest);

impl OverGuest {
    pub async fn near_files(&self, tool: &str, arguments: &Value) -> Result<Value, ToolError> {
        Ok(self.0.tool(tool, arguments).await?)
    }

    pub async fn start(&self, spec: &ExecSpec) -> Result<(), ToolError> {
        self.0.exec_in_background(spec).await?;
        Ok(())
    }

    pub async fn start_code(&self, code: Execute) -> Result<(), ToolError> {
        let spec = self.place_code(code).await?;
        self.start(&spec).await
    }

    /// Puts code into the sandbox and says how it is run.
    pub async fn place_code(&self, code: Execute) -> Result<ExecSpec, ToolError> {
        let (ending, command) = interpreter(code.language.as_deref())?;
        if !code.requirements.is_empty() || code.env_name.is_some() {
            return Err(ToolError::new(
                Kind::Invalid,
                "not_supported",
                "this sandbox makes no environments for requirements",
            )
            .hint("install what is needed with 'pip install' by execute, then run the code"));
        }
        let id = code.exec_id.ok_or_else(|| ToolError::invalid("the exec has no id"))?;
        for (name, contents) in &code.files {
            let bytes = base64::Engine::decode(&base64::engine::general_purpose::STANDARD, contents)
                .map_err(|error| ToolError::invalid(format!("a file is not base64: {error}")))?;
            let inside =
                !name.is_empty() && !name.starts_with('/') && name.split('/').all(|part| part != "..");
            if !inside {
                let shown = name.escape_default();
                return Err(ToolError::invalid(format!("'{shown}' is not a relative path without '..'")));
            }
            self.0.write_file(name, &bytes, WriteFile { parents: true, ..WriteFile::default() }).await?;
        }
        let file = format!("/tmp/.cubicle-{id}{ending}");
        let private = WriteFile { mode: Some(0o600), ..WriteFile::default() };
        self.0.write_file(&file, code.code.as_bytes(), private).await?;
        let argv = command.iter().map(|part| (*part).to_owned()).chain([file]).collect();
        Ok(ExecSpec {
            cwd: code.cwd,
            env: code.env,
            stdin: code.stdin.map_or(Stdin::Closed, Stdin::Text),
            timeout_seconds: code.timeout_seconds,
            exec_id: Some(id),
            ..ExecSpec::new(Command::Argv(argv))
        })
    }

    /// Nobody looks for what code has made here.
    pub async fn produced(&self, _exec: ExecId) -> Result<Option<Produced>, ToolError> {
        Ok(None)
    }

    pub async fn follow(&self, exec: ExecId, from_seq: u64) -> Result<Box<dyn Follow>, ToolError> {
        let stream = self.0.attach(exec, from_seq).await?;
        Ok(Box::new(Journal { guest: self.0.clone(), stream, came_back: false }))
    }

    pub async fn end(&self, exec: ExecId, grace: Option<Duration>) -> Result<(), ToolError> {
        Ok(self.0.end(exec, grace).await?)
    }
}

/// How the file of a language ends, and what runs it.
fn interpreter(language: Option<&str>) -> Result<(&'static str, &'static [&'static str]), ToolError> {
    match language.unwrap_or("python") {
        "python" => Ok((".py", &["python3"])),
        "bash" => Ok((".sh", &["bash"])),
        "javascript" => Ok((".js", &["node"])),
        other => {
            let why = format!("'{}' is not a language of this sandbox", other.escape_default());
            Err(ToolError::new(Kind::Invalid, "unknown_language", why)
                .hint("python, bash and javascript are; execute runs anything that is installed"))
        }
    }
}

/// The journal of an exec, gone on with after a connection broke.
struct Journal {
    guest: Guest,
    stream: ExecStream,
    came_back: bool,
}

#[async_trait]
impl Follow for Journal {
    async fn next(&mut self) -> Result<Option<Output>, ToolError> {
        loop {
            let failed = match self.stream.next().await {
                Ok(None) => return Ok(None),
                Ok(Some(frame)) => {
                    self.came_back = false;
                    let what = match frame.event()? {
                        Event::Stdout(bytes) => What::Stdout(bytes.to_vec()),
                        Event::Stderr(bytes) => What::Stderr(bytes.to_vec()),
                        Event::Exit(exited) => {
                            What::Exited { exit: exited.exit, timed_out: exited.timed_out }
                        }
                        _ => What::Other,
                    };
                    return Ok(Some(Output { seq: frame.seq, what }));
                }
                Err(failed) => failed,
            };
            // A second time in a row there is nobody to come back to.
            if self.came_back || !matches!(failed, ClientError::Unavailable(_)) {
                return Err(failed.into());
            }
            self.came_back = true;
            let from = self.stream.resume_from().unwrap_or(0);
            self.stream = self.guest.attach(self.stream.exec_id(), from).await?;
        }
    }
}
