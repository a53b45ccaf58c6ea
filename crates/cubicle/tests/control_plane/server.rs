//! A server of its own for every test: started, killed, and started again where it was.

use std::fs::File;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::host::{self, Host, send, wait};

const SIGTERM: i32 = 15;
const SIGKILL: i32 = 9;
/// Long enough for any host; only a hang gets there.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    process: Option<Child>,
    listen: String,
    flags: &'static [&'static str],
    // Dropped last: it removes what the server left in the data directory.
    pub(crate) host: Host,
}

impl Server {
    /// `None` where the host cannot run sandboxes; the test that asks is counted as skipped.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(flags: &'static [&'static str]) -> Option<Self> {
        let mut server = Self { process: None, listen: "127.0.0.1:0".into(), flags, host: Host::new()? };
        server.up();
        server.listen = server.address().trim_start_matches("http://").to_owned();
        Some(server)
    }

    /// Starts it, where it was before if it was.
    pub(crate) fn up(&mut self) {
        let noted = self.host.data_dir().join("server/address");
        // What a killed server left would be taken for the new one's.
        let _ = std::fs::remove_file(&noted);
        let log = File::create(self.host.scratch().join("log")).expect("scratch is writable");
        #[expect(clippy::disallowed_methods, reason = "a black-box test starts the program that it tests")]
        let process = Command::new(host::BINARY)
            .args(["up", "--pool-size", "2", "--listen", &self.listen])
            .args(self.flags)
            .env("CUBICLE_DATA_DIR", self.host.data_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("the built program starts");
        self.process = Some(process);
        let start = Instant::now();
        while !noted.exists() {
            assert!(start.elapsed() < BOUND, "the server did not start: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.end(SIGKILL);
    }

    pub(crate) fn stop(&mut self) {
        self.end(SIGTERM);
    }

    fn end(&mut self, signal: i32) {
        if let Some(mut process) = self.process.take() {
            send(&process, signal);
            wait(&mut process);
        }
    }

    pub(crate) fn address(&self) -> String {
        let noted = std::fs::read_to_string(self.host.data_dir().join("server/address"));
        noted.expect("a server says where it is").trim().to_owned()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.host.scratch().join("log")).unwrap_or_default()
    }

    pub(crate) fn cubicle(&self, arguments: &[&str]) -> Output {
        self.host.cubicle(arguments)
    }

    /// What a command that must succeed prints, without the end of its last line.
    pub(crate) fn says(&self, arguments: &[&str]) -> String {
        let output = self.cubicle(arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}\n{}", self.log());
        String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.says(arguments)).expect("JSON")
    }

    /// A lease, by its id.
    pub(crate) fn lease(&self) -> String {
        self.says(&["lease", "create", "--quiet"])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Standard error of a command that must fail.
pub(crate) fn complaint(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}
