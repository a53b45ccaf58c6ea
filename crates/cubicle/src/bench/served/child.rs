//! The server that is measured: this program, as a process of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use cubicle_backend::Backend;
use cubicle_backend_local::{LocalBackend, Options, Readiness};
use cubicle_model::{Fault, Kind};
use serde_json::Value;

use super::wire::{Request, Wire};
use crate::bench::baseline::{not_started, program};
use crate::bench::site::unusable;
use crate::control_plane;
use crate::data_dir;

/// Until it answers; only a server that hangs gets there.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) key: String,
    /// From its start until it answered a request.
    pub(crate) took: Duration,
}

/// How it is started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    pub(crate) pool: usize,
    pub(crate) capacity: usize,
}

/// Where its data are: an instance of its own in the data directory.
pub(crate) fn place(data_dir: &Path) -> PathBuf {
    data_dir.join("bench-server")
}

impl Served {
    pub(crate) async fn start(data_dir: &Path, size: Size) -> Result<Self, Fault> {
        Self::start_at(data_dir, size, "127.0.0.1:0").await
    }

    /// One whose sandboxes have no network at all.
    pub(crate) async fn start_without_gateway(data_dir: &Path, size: Size) -> Result<Self, Fault> {
        Self::start_with(data_dir, size, "127.0.0.1:0", &[("CUBICLE_EGRESS", "false")]).await
    }

    /// On the same data as before; `listen` is where it was, for whoever comes back to it.
    pub(crate) async fn start_at(data_dir: &Path, size: Size, listen: &str) -> Result<Self, Fault> {
        Self::start_with(data_dir, size, listen, &[]).await
    }

    async fn start_with(
        data_dir: &Path,
        size: Size,
        listen: &str,
        variables: &[(&str, &str)],
    ) -> Result<Self, Fault> {
        let place = place(data_dir);
        data_dir::prepare(&place)?;
        let log = fs::File::create(place.join("log")).map_err(|error| unusable(&place, error))?;
        _ = fs::remove_file(control_plane::address_file(&place));
        let mut command = program("/proc/self/exe");
        command.args(["up", "--listen", listen, "--pool-size", &size.pool.to_string()]);
        command.env("CUBICLE_DATA_DIR", &place).env("CUBICLE_CAPACITY", size.capacity.to_string());
        command.envs(variables.iter().copied());
        // The allowance of a key is not what is measured.
        command.env("CUBICLE_REQUESTS_PER_SECOND", "1000000").stderr(Stdio::from(log));
        let from = Instant::now();
        let child = command.spawn().map_err(|error| not_started(&command, error))?;
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut served = Self { child, address: unknown, key: String::new(), took: Duration::ZERO };
        served.wait_until_it_answers(&place, from).await?;
        Ok(served)
    }

    async fn wait_until_it_answers(&mut self, place: &Path, from: Instant) -> Result<(), Fault> {
        loop {
            if let Some(address) = noted(&control_plane::address_file(place))
                && let Some(address) = address.strip_prefix("http://").and_then(|text| text.parse().ok())
                && let Some(key) = noted(&control_plane::first_key_file(place))
            {
                (self.address, self.key) = (address, key);
                self.wire().await?.ask(&self.request("GET", "/leases?limit=1", None)).await?;
                self.took = from.elapsed();
                return Ok(());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                let said = fs::read_to_string(place.join("log")).unwrap_or_default();
                let said = crate::failure::printable(said.lines().last().unwrap_or("nothing"));
                return Err(Fault::new(Kind::Internal, format!("the server ended with {status}: {said}")));
            }
            if from.elapsed() > PATIENCE {
                return Err(Fault::new(Kind::Unavailable, "the server does not start"));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub(crate) async fn wire(&self) -> Result<Wire, Fault> {
        Wire::connect(self.address).await
    }

    /// `path` is below `/api/v1`.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Request {
        Request::new(method, &format!("/api/v1{path}"), &self.key, body)
    }

    /// A lease that lasts longer than any measurement, and its sandbox.
    pub(crate) async fn lease(&self, wire: &mut Wire) -> Result<String, Fault> {
        let lease = wire.ask_json(&self.request("POST", "/leases", Some(&super::long_lease()))).await?;
        let sandbox = lease["sandbox_id"].as_str();
        sandbox.map(str::to_owned).ok_or_else(|| Fault::new(Kind::Internal, "a lease has no sandbox"))
    }

    /// Resident memory in MB, now and at most so far.
    pub(crate) fn memory(&self) -> (f64, f64) {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_whitespace().next()?.parse::<f64>().ok()
        };
        let megabytes = |name| field(name).unwrap_or(f64::NAN) * 1024.0 / 1e6;
        (megabytes("VmRSS:"), megabytes("VmHWM:"))
    }

    /// As if the power went for this one process.
    pub(crate) fn kill(mut self) -> SocketAddr {
        _ = self.child.kill();
        _ = self.child.wait();
        self.address
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // One that has ended needs neither.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn noted(file: &Path) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Removes what servers left: their sandboxes outlive them. One after the other, because thousands of endings at once can
/// lock up the kernel.
pub(crate) async fn remove_all(data_dir: &Path) -> Result<(), Fault> {
    let place = place(data_dir);
    if !place.exists() {
        return Ok(());
    }
    let options = Options { readiness: Readiness::OneSandbox, ..Options::new(place.clone()) };
    let backend = LocalBackend::open(options).await?;
    for seen in backend.list().await? {
        backend.destroy(seen.id).await?;
    }
    backend.gc().await?;
    drop(backend);
    fs::remove_dir_all(&place).map_err(|error| unusable(&place, error))
}
