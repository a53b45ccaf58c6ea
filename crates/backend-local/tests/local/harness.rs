//! A data directory of its own on this host, and what tests need around it.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cubicle_backend::Backend;
use cubicle_backend::conformance::Harness;
use cubicle_backend_local::{LocalBackend, Options};
use cubicle_guest::client::{Guest, Outcome, OutputLimits};
use cubicle_model::{
    Command, ExecSpec, Exit, Fault, Isolation, Lifetime, Limits, Medium, Placement, Root, SandboxId, Trust,
};

use cubicle_tests_leftovers::{Company, Instance};

/// Long enough for any host; only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(10);

/// This host, with a data directory that is removed in the end.
pub(crate) struct Host {
    directory: tempfile::TempDir,
    scratch: PathBuf,
}

impl Host {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let open_to_all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), open_to_all).expect("the directory is ours");
        let path = directory.path().canonicalize().expect("the directory is there");
        let scratch = path.join("scratch");
        std::fs::create_dir(&scratch).expect("the directory is ours");
        Self { scratch, directory }
    }

    /// A host on which sandboxes can be made; otherwise the test that asks is counted as skipped.
    pub(crate) async fn with_sandboxes() -> Option<Self> {
        let host = Self::new();
        let made = match LocalBackend::open(host.options()).await {
            Ok(backend) => backend.ensure(&place(Lifetime::Bound)).await.map(drop),
            Err(fault) => Err(fault),
        };
        match made {
            Ok(()) => Some(host),
            Err(fault) => {
                skipped(&format!("no sandbox can be made here: {fault}"));
                None
            }
        }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    pub(crate) fn options(&self) -> Options {
        Options { mountable: vec![self.scratch.clone()], ..Options::new(self.data()) }
    }

    pub(crate) async fn backend(&self) -> LocalBackend {
        LocalBackend::open(self.options()).await.expect("the backend opens")
    }

    /// Waits until nothing is left but the sandboxes that are named.
    pub(crate) async fn is_clean_but_for(&self, kept: &[SandboxId]) {
        let kept: Vec<String> = kept.iter().map(ToString::to_string).collect();
        let instance = Instance::of(&self.data()).expect("the data directory has been opened");
        let mut last = Vec::new();
        let clean = eventually(async || {
            last = instance.leftovers(&kept, Company::WithOthers);
            last.is_empty()
        });
        assert!(clean.await, "left on the host: {last:#?}");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(instance) = Instance::of(&self.data()) {
            instance.forget();
        }
    }
}

#[async_trait]
impl Harness for Host {
    async fn open(&self) -> Arc<dyn Backend> {
        Arc::new(self.backend().await)
    }

    fn placement(&self, lifetime: Lifetime) -> Placement {
        place(lifetime)
    }

    fn random(&self) -> [u8; 16] {
        random()
    }

    async fn leftovers(&self) -> Vec<String> {
        Instance::of(&self.data())
            .map_or_else(Vec::new, |instance| instance.leftovers(&[], Company::WithOthers))
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }
}

pub(crate) fn place(lifetime: Lifetime) -> Placement {
    Placement {
        id: SandboxId::from_random(random()),
        lifetime,
        isolation: Isolation::Namespaces,
        trust: Trust::Medium,
        root: Root::Host,
        workspace: Medium::Memory,
        limits: Limits::default(),
        env: Default::default(),
        labels: Default::default(),
    }
}

pub(crate) fn random() -> [u8; 16] {
    let mut bytes = [0; 16];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .expect("the kernel has random bytes");
    bytes
}

/// Waits for a condition and says whether it came true within the bound.
pub(crate) async fn eventually(mut holds: impl AsyncFnMut() -> bool) -> bool {
    for _ in 0..BOUND.as_millis() / STEP.as_millis() {
        if holds().await {
            return true;
        }
        tokio::time::sleep(STEP).await;
    }
    false
}

/// What must end ends within the bound.
pub(crate) async fn in_time<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what}: not done after {BOUND:?}"),
    }
}

pub(crate) fn shell(script: &str) -> ExecSpec {
    ExecSpec::new(Command::Shell(script.into()))
}

/// Runs a script to its end.
pub(crate) async fn run(guest: &Guest, script: &str) -> Result<Outcome, Fault> {
    Ok(in_time(script, guest.run(&shell(script), OutputLimits::default())).await?)
}

/// What a script prints; it must succeed.
pub(crate) async fn output(guest: &Guest, script: &str) -> String {
    let outcome = run(guest, script).await.expect("the sandbox runs commands");
    let stderr = String::from_utf8_lossy(&outcome.stderr);
    assert_eq!(outcome.exit, Exit::Code(0), "{script}: {stderr}");
    String::from_utf8(outcome.stdout).expect("the script prints text")
}

/// Counts the test that calls this as skipped, with the reason. The harness's own capture would hide it.
pub(crate) fn skipped(reason: &str) {
    let thread = std::thread::current();
    let _ = writeln!(std::io::stderr(), "skipped: {}: {reason}", thread.name().unwrap_or("a test"));
}
