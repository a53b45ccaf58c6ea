//! Finding a server and a key, and what commands that talk to it share.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cubicle_api as api;
use cubicle_api::client::{Address, Client, Secret};
use cubicle_model::{Fault, Kind, LeaseId, SandboxId};
use tokio::time::sleep;

use crate::context::{Context, fill_with_random};
use crate::target::Target;

const USUAL: &str = "http://127.0.0.1:7878";
/// A lease that only lives as long as one command ends soon after it, also when the command was killed.
const OWN_TTL: u32 = 60;
/// Shorter commands do not ask about their lease.
const SHORT: Duration = Duration::from_millis(500);

/// Where the server of a data directory says what its address is.
pub(crate) fn address_file(data_dir: &Path) -> PathBuf {
    data_dir.join("server/address")
}

/// Where the first key of the server of a data directory is.
pub(crate) fn first_key_file(data_dir: &Path) -> PathBuf {
    data_dir.join("server/admin.key")
}

/// The server that the command line, the environment or the file names; otherwise the one of this data directory.
pub(crate) fn client(context: &Context) -> Result<Client, Fault> {
    let asked = &context.settings.server;
    let address = match &asked.url {
        Some(address) => address.clone(),
        None => usual_address(context.data_dir())?,
    };
    let key = match (&asked.key, &asked.key_file) {
        (Some(key), _) => Some(key.clone()),
        (None, Some(file)) => Some(read_key(file)?.ok_or_else(|| {
            Fault::new(Kind::NotFound, format!("there is no key in {}", file.display()))
                .hint("check --key-file and CUBICLE_KEY_FILE")
        })?),
        // The key of this machine's server is for this machine: another one would be told a secret that opens ours.
        (None, None) if address.is_loopback() => read_key(&first_key_file(context.data_dir())).ok().flatten(),
        (None, None) => None,
    };
    Ok(Client::new(address, key, fill_with_random))
}

fn usual_address(data_dir: &Path) -> Result<Address, Fault> {
    let noted = std::fs::read_to_string(address_file(data_dir)).ok();
    let address = noted.as_deref().map_or(USUAL, str::trim);
    address.parse().map_err(|error| {
        Fault::new(Kind::Internal, format!("{} is damaged", address_file(data_dir).display())).because(error)
    })
}

/// The secret that a key file holds.
fn read_key(path: &Path) -> Result<Option<Secret>, Fault> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim()).filter(|text| !text.is_empty()).map(Secret::new)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Fault::new(Kind::Denied, format!("cannot read {}", path.display())).because(error)),
    }
}

/// The sandbox that is meant.
pub(crate) async fn sandbox(client: &Client, target: Target) -> Result<SandboxId, Fault> {
    let id = match target {
        Target::Sandbox(id) => return Ok(id),
        Target::Lease(id) => id,
    };
    let lease = client.lease(id).await?;
    if lease.status.has_ended() {
        return Err(Fault::new(Kind::Conflict, format!("{id} has ended"))
            .hint("'cubicle lease create' makes another"));
    }
    match lease.sandbox_id {
        Some(sandbox) => read_id(&sandbox),
        None => Err(Fault::new(Kind::Conflict, format!("{id} still waits for room"))
            .hint(format!("'cubicle lease get {id}' shows its place in the queue"))),
    }
}

/// An id that came from the server.
pub(crate) fn read_id<T: std::str::FromStr<Err: std::fmt::Display>>(text: &str) -> Result<T, Fault> {
    text.parse()
        .map_err(|error| Fault::new(Kind::Internal, format!("the server gave an id that is none: {error}")))
}

/// A lease for the time of one command.
#[derive(Debug)]
pub(crate) struct OwnLease {
    pub(crate) id: LeaseId,
    pub(crate) sandbox: SandboxId,
}

impl OwnLease {
    pub(crate) async fn acquire(
        client: &Client,
        template: Option<&str>,
        egress: api::LeaseEgress,
    ) -> Result<Self, Fault> {
        let mut asked =
            api::CreateLease { ttl_seconds: Some(OWN_TTL), egress, ..api::CreateLease::default() };
        if let Some(template) = template {
            asked.template = template.to_owned();
        }
        let lease = client.create_lease(&asked).await?;
        let id = read_id(&lease.lease_id)?;
        let sandbox = lease.sandbox_id.as_deref().map(read_id).transpose()?;
        let sandbox =
            sandbox.ok_or_else(|| Fault::new(Kind::Full, "there is no room for another sandbox now"))?;
        Ok(Self { id, sandbox })
    }

    /// What cannot be released ends by itself soon.
    pub(crate) async fn release(self, client: &Client) {
        _ = client.release(self.id).await;
    }
}

/// Renews the lease of a sandbox for as long as somebody attends what runs in it. Failures are tried again: they show in
/// what is attended.
pub(crate) async fn keep_alive(client: &Client, sandbox: SandboxId) -> Infallible {
    sleep(SHORT).await;
    let (lease, ttl) = loop {
        match lease_of(client, sandbox).await {
            Ok(Some(found)) => break found,
            Ok(None) => return std::future::pending().await,
            Err(_) => sleep(Duration::from_secs(1)).await,
        }
    };
    let pause = Duration::from_secs(u64::from(ttl)) / 3;
    loop {
        // After a failure sooner: the time to live goes on.
        let wait = match client.heartbeat(lease).await {
            Ok(_) => pause,
            Err(_) => pause.min(Duration::from_secs(1)),
        };
        sleep(wait).await;
    }
}

async fn lease_of(client: &Client, sandbox: SandboxId) -> Result<Option<(LeaseId, u32)>, Fault> {
    let Some(id) = client.sandbox(sandbox).await?.lease_id else { return Ok(None) };
    let id = read_id(&id)?;
    Ok(Some((id, client.lease(id).await?.ttl_seconds)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_of_a_data_directory_says_where_it_is() {
        let place = tempfile::tempdir().unwrap();
        assert_eq!(usual_address(place.path()).unwrap().to_string(), USUAL);
        std::fs::create_dir(place.path().join("server")).unwrap();
        std::fs::write(address_file(place.path()), "http://127.0.0.1:9000\n").unwrap();
        assert_eq!(usual_address(place.path()).unwrap().to_string(), "http://127.0.0.1:9000");
        std::fs::write(address_file(place.path()), "nonsense").unwrap();
        assert!(usual_address(place.path()).is_err());
    }

    #[test]
    fn an_empty_key_file_holds_no_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(read_key(file.path()).unwrap(), None);
        std::fs::write(file.path(), "ck-1\n").unwrap();
        assert_eq!(read_key(file.path()).unwrap(), Some(Secret::new("ck-1")));
        assert_eq!(read_key(Path::new("/nonexistent/key")).unwrap(), None);
    }
}
