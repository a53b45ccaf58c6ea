//! Running code in some language, with what it needs.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cubicle_guest::wire::execute::{Execute, Produced};
use cubicle_model::SandboxId;
use serde::{Deserialize, Serialize};

use crate::bench::Bench;
use crate::call::Watch;
use crate::error::ToolError;
use crate::execs::{self, Executed};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCode {
    code: String,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    requirements: Vec<String>,
    #[serde(default)]
    env_name: Option<String>,
    /// Text by relative path.
    #[serde(default)]
    files: BTreeMap<String, String>,
    #[serde(default)]
    stdin: Option<String>,
    #[serde(default)]
    timeout: Option<f64>,
    #[serde(default)]
    max_output_bytes: Option<usize>,
}

/// What came of the code.
#[derive(Debug, Serialize)]
pub(crate) struct CodeRun {
    /// `success`, `error` or `timeout`.
    status: &'static str,
    #[serde(flatten)]
    executed: Executed,
    /// Files that are new or changed, by their names; `read_file` reads them.
    files_produced: Vec<FileMade>,
}

#[derive(Debug, Serialize)]
struct FileMade {
    name: String,
    bytes: u64,
}

pub(crate) async fn run_code(
    bench: &dyn Bench,
    sandbox: SandboxId,
    asked: RunCode,
    watch: &dyn Watch,
) -> Result<CodeRun, ToolError> {
    if asked.code.trim().is_empty() {
        return Err(ToolError::invalid("'code' is empty"));
    }
    let most = execs::output_limit(asked.max_output_bytes)?;
    let exec = bench.exec_id();
    let code = Execute {
        tool_name: Some("run_code".into()),
        code: asked.code,
        language: asked.language,
        requirements: asked.requirements,
        env_name: asked.env_name,
        timeout_seconds: Some(execs::checked_timeout(asked.timeout)?),
        files: asked.files.into_iter().map(|(name, text)| (name, STANDARD.encode(text))).collect(),
        stdin: asked.stdin,
        exec_id: Some(exec),
        ..Execute::default()
    };
    watch.starts(sandbox, exec);
    bench.start_code(sandbox, code).await?;
    let executed = execs::to_its_end(bench, sandbox, exec, most, watch).await?;
    let produced = bench.produced(sandbox, exec).await?;
    let status = match (executed.timed_out, executed.exit_code) {
        (true, _) => "timeout",
        (false, Some(0)) => "success",
        (false, _) => "error",
    };
    Ok(CodeRun { status, executed, files_produced: made(produced) })
}

/// Names and sizes: contents are read where they are wanted.
fn made(produced: Produced) -> Vec<FileMade> {
    let inline = produced.files_produced.into_iter().map(|(name, contents)| {
        let padding = contents.bytes().rev().take_while(|byte| *byte == b'=').count();
        FileMade { name, bytes: (contents.len() / 4 * 3).saturating_sub(padding) as u64 }
    });
    let referenced =
        produced.files_referenced.into_iter().map(|file| FileMade { name: file.name, bytes: file.bytes });
    let mut made: Vec<_> = inline.chain(referenced).collect();
    made.sort_by(|a, b| a.name.cmp(&b.name));
    made
}

#[cfg(test)]
mod tests {
    use cubicle_guest::wire::execute::FileReference;

    use super::*;

    #[test]
    fn files_are_told_of_by_their_names_and_sizes() {
        let encoded = |text: &str| STANDARD.encode(text);
        let produced = Produced {
            files_produced: [("b", ""), ("a", "x"), ("d", "xyz")]
                .map(|(name, text)| (name.to_owned(), encoded(text)))
                .into(),
            files_referenced: vec![FileReference { name: "c".into(), path: "/workspace/c".into(), bytes: 9 }],
            files_incomplete: false,
        };
        let told: Vec<_> = made(produced).into_iter().map(|file| (file.name, file.bytes)).collect();
        let expected = [("a", 1), ("b", 0), ("c", 9), ("d", 3)].map(|(name, bytes)| (name.to_owned(), bytes));
        assert_eq!(told, expected);
    }
}
