//! `sandboxd` as a program of its own, for places that start it from an image.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::process::ExitCode;

use cubicle_guest::daemon::{self, Config, DEFAULT_MAX_EXECS, DEFAULT_MAX_EXECUTES, Workload};
use cubicle_guest::hello::Key;
use cubicle_model::{Limits, SandboxId};
use serde_json::json;

const USAGE: &str = "usage: sandboxd --listen unix:PATH --sandbox ID --key-file PATH --journal PATH
                [--deadline-seconds N] [--journal-limit BYTES] [--workload-uid UID] [--workload-gid GID]
                [--secrets-directory PATH] [--max-executes N] [--env NAME=VALUE]…

The key file holds 32 bytes. Without --workload-uid execs run as the user of sandboxd itself.";

fn main() -> ExitCode {
    let config = Arguments::parse(std::env::args().skip(1)).and_then(Arguments::into_config);
    match config {
        Ok(config) => daemon::run(config),
        Err(error) => {
            eprintln!("sandboxd: {error}\n\n{USAGE}");
            ExitCode::from(64)
        }
    }
}

#[derive(Debug, Default)]
struct Arguments {
    given: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
}

impl Arguments {
    const KNOWN: [&str; 10] = [
        "--listen",
        "--sandbox",
        "--key-file",
        "--journal",
        "--deadline-seconds",
        "--journal-limit",
        "--workload-uid",
        "--workload-gid",
        "--secrets-directory",
        "--max-executes",
    ];

    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        while let Some(flag) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{flag} needs a value"))?;
            if flag == "--env" {
                let (name, value) =
                    value.split_once('=').ok_or_else(|| format!("--env takes NAME=VALUE, not {value}"))?;
                parsed.env.insert(name.into(), value.into());
            } else if Self::KNOWN.contains(&flag.as_str()) {
                parsed.given.insert(flag, value);
            } else {
                return Err(format!("unknown argument {flag}"));
            }
        }
        Ok(parsed)
    }

    fn required(&self, flag: &str) -> Result<&str, String> {
        self.given.get(flag).map(String::as_str).ok_or_else(|| format!("{flag} is missing"))
    }

    fn number<T: std::str::FromStr>(&self, flag: &str) -> Result<Option<T>, String> {
        let parse = |value: &String| value.parse().map_err(|_| format!("{flag} takes a number, not {value}"));
        self.given.get(flag).map(parse).transpose()
    }

    fn into_config(self) -> Result<Config, String> {
        let limits = Limits::default();
        let sandbox: SandboxId = self
            .required("--sandbox")?
            .parse()
            .map_err(|error: cubicle_model::ParseIdError| error.to_string())?;
        let socket = self.required("--listen")?;
        let socket =
            socket.strip_prefix("unix:").ok_or_else(|| format!("--listen takes unix:PATH, not {socket}"))?;
        let workload = match (self.number("--workload-uid")?, self.number("--workload-gid")?) {
            (None, None) => Workload::OneUid,
            (Some(uid), gid) => Workload::TwoUids { uid, gid: gid.unwrap_or(uid) },
            (None, Some(_)) => return Err("--workload-gid needs --workload-uid".into()),
        };
        let deadline_seconds = self.number("--deadline-seconds")?.unwrap_or(limits.wall_seconds.value);
        let journal_limit = self.number("--journal-limit")?.unwrap_or(limits.journal.value);
        let max_executes = self.number("--max-executes")?.unwrap_or(DEFAULT_MAX_EXECUTES);
        Ok(Config {
            sandbox,
            key: read_key(self.required("--key-file")?)?,
            journal: open_journal(self.required("--journal")?)?,
            listener: Some(listen(socket)?),
            connections: Vec::new(),
            journal_limit,
            place: json!({ "sandbox": sandbox }),
            receipt: None,
            lifeline: None,
            deadline_seconds,
            workload,
            secrets: self.given.get("--secrets-directory").map_or("/run/secrets", String::as_str).into(),
            env: with_defaults(self.env),
            oom_events: oom_events(),
            max_execs: DEFAULT_MAX_EXECS,
            max_executes,
            builtin_exe: None,
            permit: Default::default(),
        })
    }
}

fn with_defaults(given: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME".to_owned(), "/home/agent".to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
    ]);
    env.extend(given);
    env
}

fn read_key(path: &str) -> Result<Key, String> {
    let bytes = fs::read(path).map_err(|error| format!("cannot read the key file {path}: {error}"))?;
    let bytes = bytes.try_into().map_err(|_| format!("the key file {path} does not hold 32 bytes"))?;
    Ok(Key::new(bytes))
}

fn open_journal(path: &str) -> Result<OwnedFd, String> {
    let file = fs::File::options().create(true).truncate(false).read(true).write(true).open(path);
    file.map(OwnedFd::from).map_err(|error| format!("cannot open the journal {path}: {error}"))
}

fn listen(path: &str) -> Result<OwnedFd, String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("cannot remove the old socket {path}: {error}"));
        }
        _ => {}
    }
    let listener = UnixListener::bind(path).map_err(|error| format!("cannot listen on {path}: {error}"))?;
    Ok(listener.into())
}

/// The file that counts kills for want of memory, where the place has its own cgroup mounted.
fn oom_events() -> Option<OwnedFd> {
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"]
        .iter()
        .find_map(|path| fs::File::open(path).ok())
        .map(OwnedFd::from)
}
