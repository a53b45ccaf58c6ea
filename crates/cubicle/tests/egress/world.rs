//! A host of its own for every test: a network with the addresses of a small internet, names, servers that stand for the
//! outside, and a server whose sandboxes want to get there. None of it can be reached from anywhere else.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, mount_bind, mount_change};
use serde_json::{Value, json};

use crate::certificates::Issuing;
use crate::client::{Server, eventually};
use crate::host::Host;
use crate::inside::Inside;
use crate::nameserver::{self, NameServer};
use crate::origin::Outside;

/// Where the good servers are: `origin.test` and others.
pub(crate) const PUBLIC: &str = "93.184.216.34";
pub(crate) const PUBLIC_V6: &str = "2606:4700::1";
/// Where somebody else is, who has certificates of his own: `evil.test`.
pub(crate) const ELSEWHERE: &str = "93.184.216.35";
const EXPIRED: &str = "93.184.216.36";
const WRONG_NAME: &str = "93.184.216.37";
const UNTRUSTED: &str = "93.184.216.38";
/// Another machine of the host's network. Nobody inside has any business there.
pub(crate) const PRIVATE: &str = "10.1.2.3";
const METADATA: &str = "169.254.169.254";

/// Whoever connects to one of these has got out where no policy lets him.
pub(crate) const TRAPS: [&str; 9] = [
    "10.1.2.3:80",
    "10.1.2.3:443",
    "10.1.2.3:5432",
    "169.254.169.254:80",
    "127.0.0.1:9000",
    "[::1]:9000",
    "127.0.0.1:5432",
    "127.0.0.1:80",
    "127.0.0.1:443",
];
pub(crate) const DATAGRAM_TRAPS: [&str; 4] =
    ["93.184.216.34:9999", "93.184.216.34:53", "10.1.2.3:53", "127.0.0.1:9999"];

/// Whatever the caller's own environment holds is none of the server's business here.
const NO_PROVIDERS: [(&str, &str); 4] =
    [("ANTHROPIC_API_KEY", ""), ("OPENAI_API_KEY", ""), ("GEMINI_API_KEY", ""), ("GOOGLE_API_KEY", "")];

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) outside: Outside,
    pub(crate) names: NameServer,
    /// What the outside's certificates are issued by, as PEM.
    pub(crate) root: String,
}

/// How the server of a world is started.
#[derive(Default)]
pub(crate) struct Setting {
    /// Where it listens, instead of on the loopback.
    pub(crate) listen: Option<&'static str>,
    pub(crate) flags: &'static [&'static str],
    pub(crate) environment: &'static [(&'static str, &'static str)],
}

/// Runs a test in a world of its own, or says why that cannot be.
pub(crate) fn in_a_world(test: impl FnOnce(&mut World) + Send + 'static) {
    in_a_world_with(Setting::default(), test);
}

pub(crate) fn in_a_world_with(setting: Setting, test: impl FnOnce(&mut World) + Send + 'static) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    // Namespaces are entered by a thread, and inherited by what it starts. The test runner's own thread stays as it is.
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        if let Some(mut world) = World::make(&setting) {
            test(&mut world);
        }
    });
    if let Err(panic) = thread.expect("a thread can be started").join() {
        std::panic::resume_unwind(panic);
    }
}

pub(crate) fn skip(why: &str) {
    // What is counted has no colon in its name.
    let test = std::thread::current().name().unwrap_or("a test").replace("::", "/");
    // Not captured by the test runner, so that the skip is seen and counted.
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {why}");
}

/// The path of a program that sandboxes see as well; skips the test where it is not installed.
pub(crate) fn installed(path: &str) -> bool {
    let there = Path::new(path).exists();
    if !there {
        skip(&format!("needs {path}, which a sandbox sees too"));
    }
    there
}

impl World {
    fn make(setting: &Setting) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip("needs root for a network of its own");
            return None;
        }
        if !installed("/usr/bin/python3") {
            return None;
        }
        if let Err(why) = enter_a_network() {
            skip(&format!("needs a network of its own, which cannot be had: {why}"));
            return None;
        }
        let host = Host::new()?;
        let issuing = Issuing::new("the outside");
        let roots = host.scratch().join("roots.pem");
        write(&roots, &issuing.root);
        if let Err(why) = name_services(host.scratch()) {
            skip(&format!("needs names of its own, which cannot be had: {why}"));
            return None;
        }
        let names = NameServer::start();
        let outside = Outside::default();
        build(&outside, &names, &issuing);
        let roots = roots.display().to_string();
        let mut environment = NO_PROVIDERS.to_vec();
        environment.push(("CUBICLE_EGRESS_EXTRA_ROOTS", &roots));
        environment.extend_from_slice(setting.environment);
        let flags = [&["--pool-size", "1"], setting.flags].concat();
        let listen = setting.listen.unwrap_or("127.0.0.1:0");
        let server = Server::start_at(host, listen, &flags, &environment);
        Some(Self { server, outside, names, root: issuing.root })
    }

    /// A sandbox under a policy.
    pub(crate) fn sandbox(&self, policy: &str) -> Inside<'_> {
        self.leased(&json!({ "egress": { "policy": policy } }))
    }

    pub(crate) fn leased(&self, asked: &Value) -> Inside<'_> {
        let (lease, sandbox) = self.server.lease(asked);
        Inside { world: self, lease, sandbox, key: self.server.admin_key() }
    }

    /// A sandbox whose clients trust the outside's certificates, as those of a host would.
    pub(crate) fn trusting(&self, policy: Option<&str>) -> Inside<'_> {
        const ROOT: &str = "/workspace/root.pem";
        let variables =
            ["SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "NODE_EXTRA_CA_CERTS"];
        let further = ["NPM_CONFIG_CAFILE", "GIT_SSL_CAINFO"];
        let env: BTreeMap<_, _> = variables.into_iter().chain(further).map(|name| (name, ROOT)).collect();
        let files = json!([{ "path": ROOT, "content": self.root }]);
        let egress = policy.map_or(json!({}), |policy| json!({ "policy": policy }));
        self.leased(&json!({ "env": env, "files": files, "egress": egress }))
    }

    /// A sandbox that was leased before.
    pub(crate) fn known(&self, lease: &str, sandbox: &str) -> Inside<'_> {
        let (lease, sandbox) = (lease.to_owned(), sandbox.to_owned());
        Inside { world: self, lease, sandbox, key: self.server.admin_key() }
    }

    /// A sandbox of the owner of another key.
    pub(crate) fn leased_by(&self, key: &str, asked: &Value) -> Inside<'_> {
        let lease = self.server.with_key("POST", "/api/v1/leases", asked, key).ok();
        let text = |name: &str| lease[name].as_str().expect("a lease has ids").to_owned();
        Inside { world: self, lease: text("lease_id"), sandbox: text("sandbox_id"), key: key.to_owned() }
    }

    /// The port of the server's API.
    pub(crate) fn api_port(&self) -> &str {
        self.server.address.rsplit(':').next().expect("an address has a port")
    }

    /// Sets a secret for one host and port.
    pub(crate) fn secret(&self, name: &str, value: &str, binding: &Value) {
        let body = json!({ "value": value, "bindings": [binding] });
        self.server.put(&format!("/api/v1/secrets/{name}"), &body).ok();
    }

    /// The gateway, which is a child of the server.
    pub(crate) fn gateway(&self) -> Option<i32> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.server.pid())).ok()?;
        let children =
            tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let children: String = children.collect();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).find(|pid: &i32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == b"egress-gateway")
        })
    }

    /// As if the power went for the gateway alone. Returns when it is gone.
    pub(crate) fn kill_gateway(&self) {
        let pid = self.gateway().expect("a gateway lives");
        let of = rustix::process::Pid::from_raw(pid).expect("a pid");
        rustix::process::kill_process(of, rustix::process::Signal::KILL).expect("it is ours");
        eventually("the gateway's end", || (self.gateway() != Some(pid)).then_some(()));
    }

    /// What came to places where nobody may come.
    pub(crate) fn trapped(&self) -> Vec<String> {
        let trapped = TRAPS.iter().flat_map(|at| {
            let said = self.outside.said_at(at);
            said.into_iter().map(move |said| format!("{at}: {said}"))
        });
        trapped.chain(self.outside.received_datagrams()).collect()
    }
}

/// A network with nothing but a loopback device, which has all addresses of the outside.
fn enter_a_network() -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).map_err(|error| told(&error))?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|error| told(&error))?;
    let ip = |arguments: &[&str]| {
        #[expect(clippy::disallowed_methods, reason = "a test sets up its network")]
        let done = std::process::Command::new("ip").args(arguments).output().map_err(|error| told(&error))?;
        match done.status.success() {
            true => Ok(()),
            false => Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr))),
        }
    };
    ip(&["link", "set", "lo", "up"])?;
    for address in [PUBLIC, ELSEWHERE, EXPIRED, WRONG_NAME, UNTRUSTED, PRIVATE, METADATA] {
        ip(&["address", "add", &format!("{address}/32"), "dev", "lo"])?;
    }
    ip(&["-6", "address", "add", &format!("{PUBLIC_V6}/128"), "dev", "lo", "nodad"])
}

/// The host's resolver asks our name server, and nobody else.
fn name_services(scratch: &Path) -> Result<(), String> {
    let texts = [
        ("/etc/resolv.conf", format!("nameserver {}\noptions timeout:1 attempts:1\n", nameserver::ADDRESS)),
        ("/etc/hosts", "127.0.0.1 localhost\n".to_owned()),
        ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
    ];
    for (path, text) in texts {
        let own = scratch.join(path.trim_start_matches('/').replace('/', "-"));
        write(&own, &text);
        mount_bind(&own, path).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// The server is another user than whoever starts it as root.
fn write(path: &PathBuf, text: &str) {
    std::fs::write(path, text).expect("the directory is ours");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).expect("the file is ours");
}

fn build(outside: &Outside, names: &NameServer, issuing: &Issuing) {
    let good = ["origin.test", "api.test", "other.test", "index.test", "git.test", "*.wild.test"];
    for name in good {
        names.set(name, &[PUBLIC]);
    }
    let bad = ["evil.test", "api.test.evil.test", "xapi.test", "api-test.test", "api.test.test"];
    for name in bad {
        names.set(name, &[ELSEWHERE]);
    }
    for (name, address) in [
        ("six.test", PUBLIC_V6),
        ("expired.test", EXPIRED),
        ("wrong-name.test", WRONG_NAME),
        ("untrusted.test", UNTRUSTED),
        ("loopback.test", "127.0.0.1"),
        ("loopback-six.test", "::1"),
        ("mapped.test", "::ffff:127.0.0.1"),
        ("private.test", PRIVATE),
        ("metadata.test", METADATA),
        ("zero.test", "0.0.0.0"),
    ] {
        names.set(name, &[address]);
    }
    let certificate = issuing.server(&[&good[..], &["six.test"]].concat());
    for (port, tls) in [(80, false), (8080, false), (443, true), (8443, true)] {
        let tls = tls.then(|| certificate.clone());
        outside.web(&format!("{PUBLIC}:{port}"), tls.clone());
        outside.web(&format!("[{PUBLIC_V6}]:{port}"), tls);
    }
    let theirs = issuing.server(&bad);
    for (port, tls) in [(80, false), (443, true)] {
        outside.web(&format!("{ELSEWHERE}:{port}"), tls.then(|| theirs.clone()));
    }
    outside.web(&format!("{EXPIRED}:443"), Some(issuing.server_until(&["expired.test"], 2021)));
    outside.web(&format!("{WRONG_NAME}:443"), Some(issuing.server(&["somebody-else.test"])));
    let untrusted = Issuing::new("nobody whom you know").server(&["untrusted.test"]);
    outside.web(&format!("{UNTRUSTED}:443"), Some(untrusted));
    outside.echo(&format!("{PUBLIC}:22"), "SSH-2.0-REACHED\r\n");
    outside.echo(&format!("{PUBLIC}:7000"), "hello\n");
    for at in TRAPS {
        outside.web(at, None);
    }
    for at in DATAGRAM_TRAPS {
        outside.datagrams(at);
    }
}
