//! What a suite stands on: a data directory, the cgroup that sandboxes should appear in, and how to look at both.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Options};
use cubicle_guest::client::{Outcome, OutputLimits};
use cubicle_model::receipt::{Enforcement, LimitInForce};
use cubicle_model::{
    Command, ExecSpec, Fault, Isolation, Lifetime, LimitRequest, Limits, Medium, Placement, Receipt, Root,
    SandboxId, Trust,
};

use crate::PROGRAM;
use crate::check::{Verdict, Wrong, eventually};

pub(crate) const MIB: u64 = 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Ground {
    pub(crate) suite: &'static str,
    /// The cgroup that the instance's own is made in.
    pub(crate) base: PathBuf,
    pub(crate) data: PathBuf,
}

impl Ground {
    pub(crate) async fn open(&self) -> Result<LocalBackend, Fault> {
        LocalBackend::open(Options::new(&self.data)).await
    }

    /// The cgroup of the instance.
    pub(crate) fn instance(&self) -> io::Result<PathBuf> {
        let id = fs::read_to_string(self.data.join("instance"))?;
        Ok(self.base.join(format!("cubicle-{}", id.trim())))
    }

    /// The cgroup of a sandbox.
    pub(crate) fn cgroup(&self, id: SandboxId) -> io::Result<PathBuf> {
        let slot = fs::read_link(self.data.join("sandboxes").join(id.to_string()))?;
        Ok(self.instance()?.join(slot.file_name().unwrap_or_default()))
    }

    /// A file of a sandbox's cgroup, without the newline.
    pub(crate) fn read(&self, id: SandboxId, file: &str) -> Result<String, Wrong> {
        let path = self.cgroup(id)?.join(file);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(text.trim().to_owned())
    }

    /// How many slots have a cgroup. The last launcher takes the instance's own with it.
    pub(crate) fn slots(&self) -> io::Result<usize> {
        let entries = match fs::read_dir(self.instance()?) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            entries => entries?,
        };
        let mut slots = 0;
        for entry in entries {
            slots += usize::from(entry?.file_type()?.is_dir());
        }
        Ok(slots)
    }

    /// Waits until the instance has no cgroup of any slot. Its backends must be closed.
    pub(crate) async fn no_slot_is_left(&self) -> Verdict {
        eventually("the end of every slot's cgroup", || self.slots().is_ok_and(|slots| slots == 0)).await
    }
}

/// A bound sandbox with these limits.
pub(crate) fn place(request: LimitRequest) -> Result<Placement, Wrong> {
    let mut bits = [0; 16];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty())?;
    Ok(Placement {
        id: SandboxId::from_random(bits),
        lifetime: Lifetime::Bound,
        isolation: Isolation::Namespaces,
        trust: Trust::Medium,
        root: Root::Host,
        workspace: Medium::Memory,
        limits: Limits::parse(&request)?,
        env: Default::default(),
        labels: Default::default(),
    })
}

/// Makes a sandbox and returns its receipt.
pub(crate) async fn make(backend: &LocalBackend, place: &Placement) -> Result<Receipt, Wrong> {
    Ok(backend.ensure(place).await?.receipt.ok_or("the sandbox has no receipt")?)
}

/// Runs one of this program's own commands in a sandbox.
pub(crate) async fn run(backend: &LocalBackend, id: SandboxId, command: &[&str]) -> Result<Outcome, Wrong> {
    Ok(backend.guest(id).run(&spec(command), OutputLimits::default()).await?)
}

/// Runs a command that must succeed, and returns what it wrote, without the newline.
pub(crate) async fn output(backend: &LocalBackend, id: SandboxId, command: &[&str]) -> Result<String, Wrong> {
    let outcome = run(backend, id, command).await?;
    if outcome.exit != cubicle_model::Exit::Code(0) {
        let why = String::from_utf8_lossy(&outcome.stderr).into_owned();
        return Err(format!("{command:?} ended with {:?}: {why}", outcome.exit).into());
    }
    Ok(String::from_utf8(outcome.stdout)?.trim().to_owned())
}

pub(crate) fn spec(command: &[&str]) -> ExecSpec {
    let argv = [PROGRAM, "inside"].iter().chain(command).map(|word| (*word).to_owned()).collect();
    let timeout = Duration::from_secs(40).as_secs_f64();
    ExecSpec { timeout_seconds: Some(timeout), ..ExecSpec::new(Command::Argv(argv)) }
}

pub(crate) fn limit<'a>(receipt: &'a Receipt, name: &str) -> Result<&'a LimitInForce, Wrong> {
    Ok(receipt
        .limits
        .iter()
        .find(|limit| limit.name == name)
        .ok_or_else(|| format!("the receipt has no limit '{name}'"))?)
}

/// Whether a receipt says that a limit is enforced by this file with this value.
pub(crate) fn is_enforced(receipt: &Receipt, name: &str, file: &str, value: u64) -> Verdict {
    let found = limit(receipt, name)?;
    let wanted = Enforcement::By { what: file.into(), read_back: value };
    if found.enforced == wanted && found.value == value {
        return Ok(());
    }
    Err(format!("the receipt says {found:?}").into())
}
