//! Attacking a sandbox of each template once per boot and binary, and remembering what came of it.

use std::fs;
use std::path::{Path, PathBuf};

use cubicle_guest::client::{Guest, OutputLimits, WriteFile};
use cubicle_launcher::plan::HostFacts;
use cubicle_model::receipt::{Attempt, Attempts, Receipt};
use cubicle_model::{
    Command, ExecSpec, Exit, Fault, Isolation, Kind, Lifetime, Limits, Medium, Placement, Root, SandboxId,
    Trust,
};

use crate::launcher::{BINARY, BINARY_DIGEST};
use crate::plan::digest;

const PROGRAM: &str = "/tmp/attempts";

/// What the outcome depends on: another root, another boot (kernel, settings) or another binary may behave differently.
pub(crate) fn made_with(template: &str, facts: &HostFacts) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let who = if facts.privileged { "root" } else { "user" };
    format!("template {template}, boot {}, binary {BINARY_DIGEST}, {who}", boot.trim())
}

pub(crate) fn remembered(data: &Path, made_with: &str) -> Option<Attempts> {
    let attempts: Attempts = serde_json::from_slice(&fs::read(file(data, made_with)).ok()?).ok()?;
    (attempts.made_with == made_with).then_some(attempts)
}

/// Puts the outcomes into a receipt that only says which attempts were made.
pub(crate) fn complete(data: &Path, receipt: &mut Receipt) {
    if let Some(attempts) = &mut receipt.attempts
        && attempts.tried.is_empty()
        && let Some(known) = remembered(data, &attempts.made_with)
    {
        *attempts = known;
    }
}

pub(crate) fn remember(data: &Path, attempts: &Attempts) -> Result<(), Fault> {
    let failed = |error: std::io::Error| {
        Fault::new(Kind::Internal, format!("the outcome of the attempts cannot be kept: {error}"))
            .because(error)
    };
    let path = file(data, &attempts.made_with);
    let draft = path.with_extension(format!("draft-{}", std::process::id()));
    let text = serde_json::to_vec(attempts).map_err(|error| failed(error.into()))?;
    fs::create_dir_all(path.parent().expect("the file lies in a directory")).map_err(failed)?;
    fs::write(&draft, text).map_err(failed)?;
    fs::rename(&draft, &path).map_err(failed)
}

fn file(data: &Path, made_with: &str) -> PathBuf {
    data.join("attempts").join(digest(made_with.as_bytes())).with_extension("json")
}

pub(crate) fn placement(root: &Root, id: SandboxId) -> Placement {
    Placement {
        id,
        lifetime: Lifetime::Bound,
        isolation: Isolation::Namespaces,
        trust: Trust::Medium,
        root: root.clone(),
        workspace: Medium::Memory,
        limits: Limits::default(),
        env: Default::default(),
        labels: Default::default(),
    }
}

/// Runs the launcher's own list of attempts as a command.
pub(crate) async fn make(guest: &Guest) -> Result<Vec<Attempt>, Fault> {
    let how = WriteFile { mode: Some(0o755), ..WriteFile::default() };
    guest.write_file(PROGRAM, BINARY, how).await?;
    let spec = ExecSpec {
        timeout_seconds: Some(30.0),
        ..ExecSpec::new(Command::Argv(vec![PROGRAM.into(), "attempts".into()]))
    };
    let outcome = guest.run(&spec, OutputLimits::default()).await?;
    if outcome.exit != Exit::Code(0) {
        return Err(Fault::new(Kind::Internal, format!("the attempts ended with {:?}", outcome.exit)));
    }
    serde_json::from_slice(&outcome.stdout).map_err(|error| {
        Fault::new(Kind::Internal, "the attempts did not say what came of them").because(error)
    })
}
