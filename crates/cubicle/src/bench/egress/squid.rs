//! squid with the same allowlist, as Debian packages it, in the foreground and without a cache.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use cubicle_model::{Fault, Kind};

use super::gateway::OTHERS;
use super::way::Process;
use crate::bench::baseline::{not_started, program};
use crate::bench::peers::installed;
use crate::environment::Environment;

/// Until it listens; only one that hangs gets there.
const PATIENCE: Duration = Duration::from_secs(30);

/// Starts squid, and says where it listens. Refused where it is not installed.
pub(super) async fn start(
    origin: SocketAddr,
    environment: &Environment,
    scratch: &Path,
) -> Result<(Process, SocketAddr), Fault> {
    let missing = || {
        Fault::new(Kind::Denied, "squid is not installed")
            .hint("install it with 'scripts/setup-ci --bench', or apt-get install squid")
    };
    let squid = installed("squid", environment).ok_or_else(missing)?;
    // The port may be taken in between, and then squid says so.
    let at = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).map_err(super::broken)?;
    let file = scratch.join("squid.conf");
    fs::write(&file, configuration(at, origin)).map_err(super::broken)?;
    let mut command = program(squid);
    command.arg("-N").arg("-f").arg(&file);
    let mut process = Process(command.spawn().map_err(|error| not_started(&command, error))?);
    let from = Instant::now();
    loop {
        if TcpStream::connect(at).is_ok() {
            return Ok((process, at));
        }
        if let Ok(Some(status)) = process.0.try_wait() {
            return Err(Fault::new(Kind::Denied, format!("squid does not run here: it ended with {status}")));
        }
        if from.elapsed() > PATIENCE {
            return Err(Fault::new(Kind::Denied, "squid does not begin to listen"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// No logs and no cache, as the gateway has none: what remains is the decision and the copying.
fn configuration(at: SocketAddr, origin: SocketAddr) -> String {
    let others: String = (0..OTHERS).map(|number| format!(" .host{number}.example")).collect();
    format!(
        "http_port {at}\n\
         acl named dstdomain -n{others}\n\
         acl origin dst {}\n\
         acl origin_port port {}\n\
         http_access allow named\n\
         http_access allow origin origin_port\n\
         http_access deny all\n\
         cache deny all\n\
         cache_mem 8 MB\n\
         access_log none\n\
         cache_log /dev/null\n\
         cache_store_log none\n\
         netdb_filename none\n\
         pid_filename none\n\
         pinger_enable off\n\
         via off\n\
         forwarded_for delete\n\
         shutdown_lifetime 0 seconds\n",
        origin.ip(),
        origin.port(),
    )
}
