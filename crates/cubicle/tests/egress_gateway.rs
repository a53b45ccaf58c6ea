//! The gateway as a process of its own: what it is told, how it ends, and what is left when it does.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cubicle_egress::control::{Common, ListenerKind, Remote, TermsText};
use cubicle_model::{Kind, SandboxId};

/// No test waits longer than this for anything.
const BOUND: Duration = Duration::from_secs(30);

struct Gateway {
    child: Child,
    control: Option<UnixStream>,
}

impl Gateway {
    fn start(arguments: &[&str]) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a black-box test starts the program that it tests")]
        let mut command = Command::new(env!("CARGO_BIN_EXE_cubicle"));
        command.arg("egress-gateway").args(arguments);
        Self::spawn(command)
    }

    /// By a line of the shell, to which the program is `$0`.
    fn start_by(script: &str) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a black-box test starts the program that it tests")]
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script, env!("CARGO_BIN_EXE_cubicle")]);
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let child = command.env_clear().stdin(OwnedFd::from(theirs)).stderr(Stdio::piped()).spawn().unwrap();
        Self { child, control: Some(ours) }
    }

    fn remote(&mut self) -> Remote {
        Remote::new(self.control.take().unwrap()).unwrap()
    }

    /// How it ended, and what it said.
    fn ended(mut self) -> (Option<i32>, String) {
        let from = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if from.elapsed() > BOUND => panic!("the gateway does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // One that has ended needs neither.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn sandbox() -> SandboxId {
    SandboxId::from_random([1; 16])
}

/// Attaches a sandbox by a listener that stays ours too, as a server has it, and says where its proxy is.
async fn attach(remote: &Remote, listener: &TcpListener, policy: &str) -> SocketAddr {
    remote.common(Common::default()).await.unwrap();
    remote.listener(sandbox(), ListenerKind::Proxy, listener.try_clone().unwrap().into()).await.unwrap();
    let terms =
        TermsText { policy: policy.parse().unwrap(), credentials: vec![], bases: vec![], record: false };
    remote.attach(sandbox(), terms).await.unwrap();
    listener.local_addr().unwrap()
}

/// An origin that answers the first request of every connection with `reached`.
fn origin() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                _ = stream.read(&mut bytes);
                _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 7\r\nconnection: close\r\n\r\nreached");
            });
        }
    });
    at
}

fn get(proxy: SocketAddr, origin: SocketAddr) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(proxy)?;
    stream.set_read_timeout(Some(BOUND))?;
    write!(stream, "GET http://{origin}/ HTTP/1.1\r\nHost: {origin}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[tokio::test]
async fn the_gateway_serves_a_sandbox_until_its_control_plane_closes() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let mut gateway = Gateway::start(&["--access-log", log.to_str().unwrap()]);
    let remote = gateway.remote();
    let (listener, origin) = (TcpListener::bind("127.0.0.1:0").unwrap(), origin());
    let proxy = attach(&remote, &listener, &format!("allow http://{origin}")).await;
    let answer = tokio::task::spawn_blocking(move || get(proxy, origin)).await.unwrap().unwrap();
    assert!(answer.ends_with("reached"), "{answer}");
    let denied = SocketAddr::from(([127, 0, 0, 1], 9));
    let answer = tokio::task::spawn_blocking(move || get(proxy, denied)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert_eq!(remote.bill(sandbox()).await.unwrap().lines[0].requests, 1);
    drop(remote);
    assert_eq!(gateway.ended(), (Some(0), String::new()));
    let lines = std::fs::read_to_string(&log).unwrap();
    assert!(lines.starts_with(&format!("{origin} {} - - [", sandbox())), "{lines}");
}

#[tokio::test]
async fn a_gateway_that_is_killed_is_told_as_unavailable_and_the_next_one_takes_the_same_listener() {
    let mut gateway = Gateway::start(&[]);
    let remote = gateway.remote();
    let (listener, origin) = (TcpListener::bind("127.0.0.1:0").unwrap(), origin());
    let policy = format!("allow http://{origin}");
    let proxy = attach(&remote, &listener, &policy).await;
    let mut open = TcpStream::connect(proxy).unwrap();
    open.set_read_timeout(Some(BOUND)).unwrap();
    // It is the gateway's when it was answered; before that it may still wait in the listener's queue.
    write!(open, "GET http://{origin}/ HTTP/1.1\r\nHost: {origin}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"reached") {
        let mut bytes = [0; 512];
        let length = open.read(&mut bytes).unwrap();
        assert!(length > 0, "{}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&bytes[..length]);
    }
    gateway.child.kill().unwrap();
    gateway.child.wait().unwrap();
    // What was open ends, and nothing answers in its place.
    let ended = open.read(&mut [0]).map_err(|error| error.kind());
    assert!(matches!(ended, Ok(0) | Err(std::io::ErrorKind::ConnectionReset)), "{ended:?}");
    for _ in 0..2 {
        assert_eq!(remote.bill(sandbox()).await.unwrap_err().kind(), Kind::Unavailable);
    }
    // A client that comes in between waits in the listener's queue, for the next gateway and its policy.
    let waiting = tokio::task::spawn_blocking(move || get(proxy, origin));
    let mut next = Gateway::start(&[]);
    let remote = next.remote();
    attach(&remote, &listener, &policy).await;
    assert!(waiting.await.unwrap().unwrap().ends_with("reached"));
}

#[tokio::test]
async fn a_gateway_out_of_descriptors_says_so_and_recovers() {
    // Fewer than two for each of the connections that it takes.
    let mut gateway = Gateway::start_by("ulimit -n 40; exec \"$0\" egress-gateway");
    let remote = gateway.remote();
    let (listener, origin) = (TcpListener::bind("127.0.0.1:0").unwrap(), origin());
    let proxy = attach(&remote, &listener, &format!("allow http://{origin}; allow tcp://{origin}")).await;
    let crowd = tokio::task::spawn_blocking(move || {
        let mut open = Vec::new();
        let mut answers = Vec::new();
        for _ in 0..40 {
            let mut stream = TcpStream::connect(proxy).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
            _ = write!(stream, "CONNECT {origin} HTTP/1.1\r\n\r\n");
            let mut answer = [0; 12];
            answers.push(stream.read_exact(&mut answer).map(|()| answer).ok());
            open.push(stream);
        }
        (answers, open)
    });
    let (answers, open) = crowd.await.unwrap();
    let count = |expected: &[u8]| answers.iter().flatten().filter(|answer| **answer == expected).count();
    let (tunnels, refused) = (count(b"HTTP/1.1 200"), count(b"HTTP/1.1 503"));
    let unheard = answers.iter().filter(|answer| answer.is_none()).count();
    assert!(tunnels > 4 && refused + unheard > 4, "{tunnels} {refused} {unheard}");
    assert_eq!(tunnels + refused + unheard, answers.len());
    // It can still be told things, and serves again when the crowd has gone.
    remote.bill(sandbox()).await.unwrap();
    drop(open);
    let reached = tokio::task::spawn_blocking(move || {
        let from = Instant::now();
        while from.elapsed() < BOUND {
            if get(proxy, origin).is_ok_and(|answer| answer.ends_with("reached")) {
                return true;
            }
        }
        false
    });
    assert!(reached.await.unwrap());
}

#[test]
fn garbage_on_the_control_socket_ends_the_gateway() {
    let long = [&u32::MAX.to_be_bytes()[..], b"x"].concat();
    let not_json = [&9_u32.to_be_bytes()[..], b"sk-secret"].concat();
    let unknown = [&11_u32.to_be_bytes()[..], br#"{"quit":{}}"#].concat();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), long, not_json, unknown] {
        let mut gateway = Gateway::start(&[]);
        let mut control = gateway.control.take().unwrap();
        control.write_all(&garbage).unwrap();
        // Held open: it is the garbage that ends it.
        let (code, said) = gateway.ended();
        assert_eq!(code, Some(125), "{said}");
        assert!(said.contains("something else than calls") && !said.contains("sk-secret"), "{said}");
    }
    // Half a call and then the end is the end.
    let mut gateway = Gateway::start(&[]);
    let mut control = gateway.control.take().unwrap();
    control.write_all(&[0, 0]).unwrap();
    drop(control);
    assert_eq!(gateway.ended().0, Some(125));
}

#[test]
fn a_gateway_without_its_socket_or_with_unusable_files_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let not_pem = format!("{place}/not.pem");
    std::fs::write(&not_pem, "nothing").unwrap();
    for (arguments, part) in [
        (["--authority", place], "the egress authority cannot be read"),
        (["--extra-roots", "/nonexistent"], "cannot read /nonexistent"),
        (["--extra-roots", &not_pem], "there is no certificate"),
        (["--access-log", "/nonexistent/log"], "the access log /nonexistent/log cannot be written"),
        (["--log", "cubicle=loud"], "the log cannot be filtered so"),
    ] {
        let (code, said) = Gateway::start(&arguments).ended();
        assert_eq!(code, Some(125), "{said}");
        assert!(said.contains(part), "{said}");
    }
    #[expect(clippy::disallowed_methods, reason = "a black-box test starts the program that it tests")]
    let output = Command::new(env!("CARGO_BIN_EXE_cubicle"))
        .arg("egress-gateway")
        .env_clear()
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(String::from_utf8(output.stderr).unwrap().contains("'cubicle up' starts it"));
}

#[tokio::test]
async fn the_gateway_has_no_rights_and_cannot_be_looked_into() {
    let mut gateway = Gateway::start(&[]);
    let remote = gateway.remote();
    // It has begun when it answers.
    remote.attached().await.unwrap();
    let process = format!("/proc/{}", gateway.child.id());
    for task in std::fs::read_dir(Path::new(&process).join("task")).unwrap() {
        let status = std::fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().to_owned()
        };
        assert_eq!(field("NoNewPrivs:"), "1");
        for set in ["CapInh:", "CapPrm:", "CapEff:"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
    }
    // A process that is not dumpable belongs to root in /proc, and so does its memory.
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("{process}/mem")).unwrap());
    assert_eq!(owner, 0);
    let limits = std::fs::read_to_string(format!("{process}/limits")).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(words[3], words[4], "{files}");
}
