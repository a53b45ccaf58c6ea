//! The client against a real `sandboxd`, run as an ordinary process.
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod contexts;
mod forwarding;
mod tools;

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use cubicle_guest::client::{
    ClientError, EntryKind, Event, ExecStream, Guest, Listening, OutputLimits, WriteFile,
};
use cubicle_guest::hello::Key;
use cubicle_guest::journal::Kind;
use cubicle_guest::wire::execute::{CreateEnvironment, Execute, WarmRequest};
use cubicle_guest::wire::{BindRequest, ExecState, GivenFile, GivenSecrets, SignalName};
use cubicle_model::{Command, ExecId, ExecSpec, Exit, Listener, SandboxId, SecretFileName, Stdin, TtySize};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A daemon that ends with the test, and a directory for its files.
struct Sandbox {
    directory: TempDir,
    process: Child,
    guest: Guest,
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const KEY: [u8; 32] = [17; 32];

fn random(bytes: &mut [u8]) {
    rustix::rand::getrandom(bytes, rustix::rand::GetRandomFlags::empty()).unwrap();
}

fn guest_with(socket: PathBuf, key: [u8; 32], sandbox: SandboxId) -> Guest {
    Guest::new(move || UnixStream::connect(socket.clone()), Key::new(key), sandbox, random)
}

impl Sandbox {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir(at("files")).unwrap();
        std::fs::write(at("key"), KEY).unwrap();
        let sandbox = SandboxId::from_random([1; 16]);
        #[allow(clippy::disallowed_methods, reason = "a test starts the program that it tests")]
        let process = std::process::Command::new(env!("CARGO_BIN_EXE_sandboxd"))
            .arg("--listen")
            .arg(format!("unix:{}", at("socket").display()))
            .args(["--sandbox", &sandbox.to_string()])
            .arg("--key-file")
            .arg(at("key"))
            .arg("--journal")
            .arg(at("journal"))
            .args(["--deadline-seconds", "300"])
            .arg("--secrets-directory")
            .arg(at("secrets"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let guest = guest_with(at("socket"), KEY, sandbox);
        let sandbox = Self { directory, process, guest };
        within(async {
            while sandbox.guest.health().await.is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        sandbox
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join("files").join(name)
    }

    async fn run(&self, script: &str) -> cubicle_guest::client::Outcome {
        self.guest.run(&shell(script), OutputLimits::default()).await.unwrap()
    }
}

fn shell(script: &str) -> ExecSpec {
    ExecSpec { cwd: Some("/".into()), ..ExecSpec::new(Command::Shell(script.into())) }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it takes too long")
}

/// Reads until there is output that ends so.
async fn until_output(stream: &mut ExecStream, ending: &str) {
    let mut seen = Vec::new();
    while !seen.ends_with(ending.as_bytes()) {
        let frame = within(stream.next()).await.unwrap().expect("the exec goes on");
        if frame.kind == Kind::Stdout {
            seen.extend_from_slice(frame.bytes);
        }
    }
}

async fn outcome_of(stream: &mut ExecStream) -> (Vec<u8>, Option<Exit>) {
    let (mut output, mut exit) = (Vec::new(), None);
    while let Some(frame) = within(stream.next()).await.unwrap() {
        match frame.event().unwrap() {
            Event::Stdout(bytes) => output.extend_from_slice(bytes),
            Event::Exit(exited) => exit = Some(exited.exit),
            _ => {}
        }
    }
    (output, exit)
}

#[tokio::test]
async fn an_exec_gives_its_output_and_its_exit() {
    let sandbox = Sandbox::start().await;
    let outcome = sandbox.run("printf out; printf err >&2; exit 3").await;
    assert_eq!((outcome.stdout.as_slice(), outcome.stderr.as_slice()), (&b"out"[..], &b"err"[..]));
    assert_eq!((outcome.exit, outcome.timed_out), (Exit::Code(3), false));
    assert!(!outcome.stdout_truncated && !outcome.stderr_truncated);
    assert_eq!(sandbox.run("kill -9 $$").await.exit, Exit::Signal(9));
    let endless = ExecSpec { timeout_seconds: Some(0.2), ..shell("sleep 60") };
    let outcome = within(sandbox.guest.run(&endless, OutputLimits::default())).await.unwrap();
    assert_eq!((outcome.exit, outcome.timed_out), (Exit::TimedOut, true));
}

#[tokio::test]
async fn what_cannot_run_is_refused_and_the_connection_goes_on() {
    let sandbox = Sandbox::start().await;
    let table = [
        (Command::Argv(vec!["/no/such/program".into()]), "command_not_found"),
        (Command::Argv(vec!["/etc/passwd".into()]), "not_executable"),
    ];
    for (command, code) in table {
        let spec = ExecSpec { cwd: Some("/".into()), ..ExecSpec::new(command) };
        let error = sandbox.guest.exec(&spec).await.unwrap_err();
        assert_eq!(error.code(), Some(code), "{error:?}");
    }
    let empty = ExecSpec { cwd: Some("/".into()), ..ExecSpec::new(Command::Argv(vec![])) };
    assert!(matches!(sandbox.guest.exec(&empty).await, Err(ClientError::Refused { status: 400, .. })));
    assert_eq!(sandbox.run("exit 0").await.exit, Exit::Code(0));
    let connections = sandbox.guest.health().await.unwrap().connections;
    assert_eq!(connections, 1);
}

#[tokio::test]
async fn output_of_any_size_arrives_unchanged() {
    let sandbox = Sandbox::start().await;
    let script =
        "head -c 30000000 /dev/zero | tr '\\0' x; head -c 100000 /dev/urandom | tee /dev/stderr | cksum";
    let limits = OutputLimits { stdout: 40_000_000, stderr: 1_000_000 };
    let outcome = within(sandbox.guest.run(&shell(script), limits)).await.unwrap();
    assert_eq!(outcome.stderr.len(), 100_000);
    assert!(outcome.stdout[..30_000_000].iter().all(|byte| *byte == b'x'));
    assert!(outcome.stdout.ends_with(b" 100000\n"));
    assert!(!outcome.stdout_truncated);
    let cut =
        within(sandbox.guest.run(&shell(script), OutputLimits { stdout: 10, stderr: 10 })).await.unwrap();
    assert_eq!((cut.stdout.len(), cut.stdout_truncated), (10, true));
    assert_eq!(cut.written.stderr, 100_000);
}

#[tokio::test]
async fn a_repeated_id_attaches_and_never_runs_twice() {
    let sandbox = Sandbox::start().await;
    let marker = sandbox.file("marker");
    let script = format!("echo once >> {}; echo done", marker.display());
    let spec = ExecSpec { exec_id: Some(ExecId::from_random([9; 16])), ..shell(&script) };
    let first = sandbox.guest.run(&spec, OutputLimits::default()).await.unwrap();
    let second = sandbox.guest.run(&spec, OutputLimits::default()).await.unwrap();
    assert_eq!(first, second);
    assert_eq!(std::fs::read_to_string(marker).unwrap(), "once\n");
}

#[tokio::test]
async fn a_reader_attaches_at_any_seq() {
    let sandbox = Sandbox::start().await;
    let mut stream = sandbox.guest.exec(&shell("for i in 1 2 3 4 5; do echo $i; done")).await.unwrap();
    let mut all = Vec::new();
    while let Some(frame) = within(stream.next()).await.unwrap() {
        all.push((frame.seq, frame.kind, frame.bytes.to_vec()));
    }
    for at in 0..all.len() {
        let mut again = sandbox.guest.attach(stream.exec_id(), all[at].0).await.unwrap();
        let mut rest = Vec::new();
        while let Some(frame) = within(again.next()).await.unwrap() {
            rest.push((frame.seq, frame.kind, frame.bytes.to_vec()));
        }
        assert_eq!(rest, all[at..]);
    }
    let mut journal = sandbox.guest.journal(0, false).await.unwrap();
    let mut seqs = Vec::new();
    while let Some(frame) = within(journal.next()).await.unwrap() {
        seqs.push(frame.seq);
    }
    assert!(seqs.windows(2).all(|pair| pair[1] == pair[0] + 1), "{seqs:?}");
}

#[tokio::test]
async fn standard_input_is_sent_in_parts() {
    let sandbox = Sandbox::start().await;
    let spec = ExecSpec { stdin: Stdin::Stream, ..shell("cat") };
    let mut stream = sandbox.guest.exec(&spec).await.unwrap();
    let id = stream.exec_id();
    sandbox.guest.stdin(id, b"one ", false).await.unwrap();
    until_output(&mut stream, "one ").await;
    sandbox.guest.stdin(id, b"two", true).await.unwrap();
    let (output, exit) = outcome_of(&mut stream).await;
    assert_eq!((output.as_slice(), exit), (&b"two"[..], Some(Exit::Code(0))));
    let text = ExecSpec { stdin: Stdin::Text("all at once".into()), ..shell("cat") };
    let outcome = sandbox.guest.run(&text, OutputLimits::default()).await.unwrap();
    assert_eq!(outcome.stdout, b"all at once");
}

#[tokio::test]
async fn execs_are_listed_signalled_and_ended() {
    let sandbox = Sandbox::start().await;
    let trap = shell("trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done");
    let mut stream = sandbox.guest.exec(&trap).await.unwrap();
    let id = stream.exec_id();
    until_output(&mut stream, "ready\n").await;
    let listed = sandbox.guest.list_execs().await.unwrap();
    assert_eq!((listed.len(), listed[0].exec_id, listed[0].state), (1, id, ExecState::Running));
    sandbox.guest.signal(id, SignalName::Name("USR1".into())).await.unwrap();
    assert_eq!(within(sandbox.guest.wait(id)).await.unwrap().exit, Some(Exit::Code(7)));
    let (output, _) = outcome_of(&mut stream).await;
    assert_eq!(output, b"caught\n");

    let started = sandbox.guest.exec_in_background(&shell("sleep 60")).await.unwrap();
    assert_eq!(sandbox.guest.exec_status(started.exec_id).await.unwrap().exit, None);
    within(sandbox.guest.end(started.exec_id, Some(Duration::from_millis(100)))).await.unwrap();
    let status = within(sandbox.guest.wait(started.exec_id)).await.unwrap();
    assert!(matches!(status.exit, Some(Exit::Signal(_))), "{status:?}");
    let missing = sandbox.guest.wait(ExecId::from_random([200; 16])).await.unwrap_err();
    assert!(matches!(missing, ClientError::Refused { status: 404, .. }), "{missing:?}");
}

#[tokio::test]
async fn a_terminal_has_the_size_that_it_is_given() {
    let sandbox = Sandbox::start().await;
    let spec = ExecSpec {
        tty: Some(TtySize { rows: 30, columns: 100 }),
        stdin: Stdin::Stream,
        ..shell("stty size; read line; stty size")
    };
    let mut stream = sandbox.guest.exec(&spec).await.unwrap();
    until_output(&mut stream, "30 100\r\n").await;
    sandbox.guest.resize(stream.exec_id(), TtySize { rows: 40, columns: 120 }).await.unwrap();
    sandbox.guest.stdin(stream.exec_id(), b"\n", false).await.unwrap();
    let (output, exit) = outcome_of(&mut stream).await;
    assert!(output.ends_with(b"40 120\r\n"), "{}", String::from_utf8_lossy(&output));
    assert_eq!(exit, Some(Exit::Code(0)));
}

#[tokio::test]
async fn many_requests_at_once_use_connections_of_their_own() {
    let sandbox = Sandbox::start().await;
    let runs: Vec<_> = (0..20)
        .map(|number| {
            let guest = sandbox.guest.clone();
            tokio::spawn(async move {
                let spec = shell(&format!("sleep 0.1; echo {number}"));
                let outcome = guest.run(&spec, OutputLimits::default()).await.unwrap();
                assert_eq!(outcome.stdout, format!("{number}\n").as_bytes());
            })
        })
        .collect();
    for run in runs {
        within(run).await.unwrap();
    }
}

#[tokio::test]
async fn the_wrong_key_and_the_wrong_sandbox_are_told_apart() {
    let sandbox = Sandbox::start().await;
    let id = sandbox.guest.sandbox();
    let other_key = guest_with(sandbox.socket(), [18; 32], id).health().await.unwrap_err();
    assert!(matches!(other_key, ClientError::Hello(_)), "{other_key:?}");
    let other_id =
        guest_with(sandbox.socket(), KEY, SandboxId::from_random([2; 16])).health().await.unwrap_err();
    assert!(matches!(other_id, ClientError::Hello(_)), "{other_id:?}");
}

#[tokio::test]
async fn a_sandbox_that_is_gone_is_unavailable() {
    let mut sandbox = Sandbox::start().await;
    sandbox.guest.health().await.unwrap();
    sandbox.process.kill().unwrap();
    sandbox.process.wait().unwrap();
    let error = within(sandbox.guest.run(&shell("true"), OutputLimits::default())).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
}

#[tokio::test]
async fn files_are_written_read_listed_moved_and_removed() {
    let sandbox = Sandbox::start().await;
    let guest = &sandbox.guest;
    let path = sandbox.file("deep/name with ü?#%.txt");
    let how = WriteFile { mode: Some(0o750), parents: true, must_be_new: false };
    guest.write_file(&path, b"0123456789", how).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"0123456789");
    assert_eq!(guest.read_file(&path, None, 100).await.unwrap(), b"0123456789");
    assert_eq!(guest.read_file(&path, Some(3..6), 100).await.unwrap(), b"345");
    assert!(matches!(guest.read_file(&path, None, 5).await, Err(ClientError::TooLong { limit: 5 })));
    let beyond = guest.read_file(&path, Some(10..20), 100).await.unwrap_err();
    assert_eq!(beyond.code(), Some("range_not_satisfiable"));
    let opened = guest.open_file(&path, Some(0..1)).await.unwrap();
    assert_eq!((opened.size, opened.mode.as_deref()), (10, Some("0750")));
    drop(opened);

    let new = WriteFile { must_be_new: true, ..WriteFile::default() };
    assert_eq!(guest.write_file(&path, b"x", new).await.unwrap_err().code(), Some("exists"));
    let stat = guest.stat(&path).await.unwrap();
    assert_eq!((stat.kind, stat.size, stat.mode.as_str()), (EntryKind::File, 10, "0750"));
    guest.make_directory(sandbox.file("a/b"), Some(0o700)).await.unwrap();
    guest.rename(&path, sandbox.file("a/moved"), true).await.unwrap();
    let listing = guest.list(sandbox.file(""), true).await.unwrap();
    let names: Vec<_> = listing.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "moved", "deep"]);
    assert_eq!(guest.remove(sandbox.file("a"), false).await.unwrap_err().code(), Some("not_empty"));
    guest.remove(sandbox.file("a"), true).await.unwrap();
    assert!(!sandbox.file("a").exists());
    assert_eq!(guest.stat("/proc/self/environ").await.unwrap_err().code(), Some("path_not_allowed"));
    // Everything went over one connection, but for the answer that was too long and the file that was dropped.
    assert_eq!(guest.health().await.unwrap().connections, 1);
}

#[tokio::test]
async fn large_files_and_archives_are_streamed_both_ways() {
    let sandbox = Sandbox::start().await;
    let guest = &sandbox.guest;
    let contents: Vec<u8> = (0..20_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let how = WriteFile { parents: true, ..WriteFile::default() };
    let written = guest.write_file_from(sandbox.file("from/big"), &mut &contents[..], how).await.unwrap();
    assert_eq!(written, contents.len() as u64);
    assert!(guest.read_file(sandbox.file("from/big"), None, 30_000_000).await.unwrap() == contents);
    std::os::unix::fs::symlink("big", sandbox.file("from/link")).unwrap();
    let mut archive = Vec::new();
    let mut body = guest.get_archive(sandbox.file("from")).await.unwrap();
    body.copy_to(&mut archive).await.unwrap();
    assert_eq!(body.skipped(), Some(0));
    let unpacked = guest.put_archive(sandbox.file("to"), &mut &archive[..]).await.unwrap();
    assert_eq!((unpacked.files, unpacked.links, unpacked.bytes), (1, 1, contents.len() as u64));
    assert!(std::fs::read(sandbox.file("to/big")).unwrap() == contents);
    assert_eq!(guest.health().await.unwrap().connections, 1);
}

#[tokio::test]
async fn a_stream_that_is_refused_early_gets_its_reason() {
    let sandbox = Sandbox::start().await;
    let contents = vec![0; 30_000_000];
    let mut stream = &contents[..];
    let refused = sandbox.guest.write_file_from(sandbox.file("no/parent"), &mut stream, WriteFile::default());
    assert_eq!(within(refused).await.unwrap_err().code(), Some("not_found"));
    let refused = sandbox.guest.write_file(sandbox.file("no/parent"), &contents, WriteFile::default());
    assert_eq!(within(refused).await.unwrap_err().code(), Some("not_found"));
    sandbox.guest.health().await.unwrap();
}

#[tokio::test]
async fn changes_are_watched_until_the_watch_is_dropped() {
    let sandbox = Sandbox::start().await;
    let mut watch = sandbox.guest.watch(sandbox.file(""), true).await.unwrap();
    assert_eq!(within(watch.next()).await.unwrap().unwrap().event, "watching");
    let path = sandbox.file("new");
    sandbox.guest.write_file(&path, b"1", WriteFile::default()).await.unwrap();
    let change = within(watch.next()).await.unwrap().unwrap();
    assert_eq!((change.event.as_str(), Path::new(&change.path)), ("created", path.as_path()));
    drop(watch);
    within(async {
        while sandbox.guest.health().await.unwrap().connections > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_port_inside_is_reached_and_a_listener_inside_is_handed_out() {
    let sandbox = Sandbox::start().await;
    let Ok([Listening::Udp(_), Listening::Tcp(listener)]) =
        <[_; 2]>::try_from(sandbox.guest.listen(&[Listener::udp(0), Listener::tcp(0)]).await.unwrap())
    else {
        panic!("the listeners are not those that were asked for")
    };
    let port = listener.local_addr().unwrap().port();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let (mut tunnel, accepted) =
        within(async { tokio::join!(sandbox.guest.port(port), listener.accept()) }).await;
    let tunnel = tunnel.as_mut().unwrap();
    let (mut accepted, _) = accepted.unwrap();
    tunnel.write_all(b"ping").await.unwrap();
    let mut bytes = [0; 4];
    within(accepted.read_exact(&mut bytes)).await.unwrap();
    accepted.write_all(&bytes).await.unwrap();
    accepted.shutdown().await.unwrap();
    let mut answer = Vec::new();
    within(tunnel.read_to_end(&mut answer)).await.unwrap();
    assert_eq!(answer, b"ping");
    drop(listener);
    let refused = within(sandbox.guest.port(1)).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { .. }), "{refused:?}");
}

#[tokio::test]
async fn a_listener_comes_back_to_whoever_comes_back_with_what_waited_there() {
    let sandbox = Sandbox::start().await;
    let listeners = sandbox.guest.listen(&[Listener::tcp(0).everywhere(), Listener::udp(0)]).await.unwrap();
    let ports: Vec<u16> = listeners.iter().map(|listener| listener.port().unwrap()).collect();
    let asked = [Listener::tcp(ports[0]).everywhere(), Listener::udp(ports[1])];
    drop(listeners);
    let mut waits = within(tokio::net::TcpStream::connect(("127.0.0.1", ports[0]))).await.unwrap();
    let sender = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    sender.send_to(b"datagram", asked[1].socket_address()).await.unwrap();

    // Another process: its first words are the hello and this request together.
    let other = guest_with(sandbox.socket(), KEY, sandbox.guest.sandbox());
    for _ in 0..3 {
        let again = other.listen(&asked).await.unwrap();
        assert_eq!(again.iter().map(|listener| listener.port().unwrap()).collect::<Vec<_>>(), ports);
    }
    let Ok([Listening::Tcp(tcp), Listening::Udp(udp)]) =
        <[_; 2]>::try_from(other.listen(&asked).await.unwrap())
    else {
        panic!("the listeners are not those that were asked for")
    };
    let tcp = tokio::net::TcpListener::from_std(tcp).unwrap();
    let (mut accepted, _) = within(tcp.accept()).await.unwrap();
    accepted.write_all(b"at last").await.unwrap();
    let mut heard = [0; 7];
    within(waits.read_exact(&mut heard)).await.unwrap();
    assert_eq!(&heard, b"at last");
    let udp = tokio::net::UdpSocket::from_std(udp).unwrap();
    let mut heard = [0; 16];
    let (count, from) = within(udp.recv_from(&mut heard)).await.unwrap();
    assert_eq!((&heard[..count], from), (&b"datagram"[..], sender.local_addr().unwrap()));
    assert!(other.health().await.is_ok(), "the connection goes on");
}

#[tokio::test]
async fn a_sandbox_opens_a_stream_to_the_host_on_a_parked_connection() {
    let sandbox = Sandbox::start().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let parked = sandbox.guest.park_accept().await.unwrap();
    sandbox.guest.open_parked("egress", port).await.unwrap();
    let (mut inside, _) = within(listener.accept()).await.unwrap();
    let (name, mut outside) = within(parked.opened()).await.unwrap();
    assert_eq!(name, "egress");
    inside.write_all(b"from inside").await.unwrap();
    inside.shutdown().await.unwrap();
    let mut received = Vec::new();
    within(outside.read_to_end(&mut received)).await.unwrap();
    assert_eq!(received, b"from inside");
    let none = sandbox.guest.open_parked("egress", port).await.unwrap_err();
    assert!(matches!(none, ClientError::Refused { .. }), "{none:?}");
}

#[tokio::test]
async fn a_sandbox_is_given_an_environment_and_a_deadline() {
    let sandbox = Sandbox::start().await;
    let env = BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]);
    sandbox.guest.bind(&BindRequest { env, ..BindRequest::default() }).await.unwrap();
    assert_eq!(sandbox.run("printf \"$GREETING\"").await.stdout, b"hello");
    sandbox.guest.set_deadline(Duration::from_secs(5000)).await.unwrap();
    let left = sandbox.guest.health().await.unwrap().deadline_seconds;
    assert!((4000..=5000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_sandbox_is_given_secrets_that_are_in_no_record() {
    let sandbox = Sandbox::start().await;
    let name = |name: &str| name.parse::<SecretFileName>().unwrap();
    let guest = &sandbox.guest;
    let give = |files: &[(&str, &[u8])], env: &[(&str, &str)]| {
        let file = |(given, bytes): &(&str, &[u8])| GivenFile { name: name(given), bytes: bytes.to_vec() };
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let secrets =
            GivenSecrets { files: files.iter().map(file).collect(), env: env.iter().map(pair).collect() };
        let request = BindRequest { secrets, ..BindRequest::default() };
        async move { guest.bind(&request).await.map(|()| format!("{request:?}")) }
    };
    let binary: Vec<u8> = (0..=255).collect();
    let printed =
        give(&[("token", b"hunter2"), ("key.der", &binary)], &[("API_KEY", "hunter3")]).await.unwrap();
    assert!(printed.contains("token") && !printed.contains("hunter"), "{printed}");
    let directory = sandbox.directory.path().join("secrets");
    assert_eq!(std::fs::read(directory.join("token")).unwrap(), b"hunter2");
    assert_eq!(std::fs::read(directory.join("key.der")).unwrap(), binary);
    let mode = std::fs::metadata(directory.join("token")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o444);
    assert_eq!(sandbox.run("[ \"$API_KEY\" = hunter3 ] && printf same").await.stdout, b"same");

    give(&[("token", b"rotated")], &[]).await.unwrap();
    assert_eq!(std::fs::read(directory.join("token")).unwrap(), b"rotated");
    let mut names: Vec<_> =
        std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["key.der", "token"]);
    let journal = std::fs::read(sandbox.directory.path().join("journal")).unwrap();
    let holds = |secret: &[u8]| journal.windows(secret.len()).any(|window| window == secret);
    // The command that compared one of them is there, as every command is.
    assert!(!holds(b"hunter2") && !holds(b"rotated") && holds(b"hunter3"));

    let twice = give(&[("token", b"a"), ("token", b"b")], &[]).await.unwrap_err();
    assert_eq!(twice.code(), Some("invalid"), "{twice}");
    let large = give(&[("token", &vec![b'x'; 256 * 1024 + 1])], &[]).await.unwrap_err();
    assert_eq!(large.code(), Some("too_large"), "{large}");
    let nameless = give(&[], &[("A=B", "hunter4")]).await.unwrap_err();
    assert!(nameless.code() == Some("invalid") && !nameless.to_string().contains("hunter"), "{nameless}");
    assert_eq!(std::fs::read(directory.join("token")).unwrap(), b"rotated", "a refusal changes nothing");
}

#[tokio::test]
async fn what_code_made_is_asked_along_with_it_and_no_answer_is_taken_for_another() {
    let sandbox = Sandbox::start().await;
    let guest = &sandbox.guest;
    let place = sandbox.file("");
    for round in 0..12 {
        let makes = round % 3 != 0;
        let code = if makes { format!("open('made-{round}', 'w').write('x')") } else { "print(1)".into() };
        let what = Execute {
            code,
            cwd: Some(place.display().to_string()),
            env: BTreeMap::from([("OUTPUT_DIR".into(), place.join("output").display().to_string())]),
            ..Execute::default()
        };
        let refused = Execute { language: Some("cobol".into()), ..what.clone() };
        let refused = guest.execute_to_its_end(&refused).await.unwrap_err();
        assert_eq!(refused.code(), Some("language_unknown"), "{round}");
        let stream = guest.execute_to_its_end(&what).await.unwrap();
        let id = stream.exec_id();
        let outcome = guest.gather(stream, OutputLimits::default()).await.unwrap();
        assert_eq!(outcome.exit, Exit::Code(0), "{round}");
        // Whatever is asked in between has answers of its own.
        assert_eq!(guest.exec_status(id).await.unwrap().exec_id, id, "{round}");
        assert_eq!(sandbox.run("printf same").await.stdout, b"same", "{round}");
        // Nobody has to ask, and who asks again is told again.
        for _ in 0..round % 4 {
            let made: Vec<String> = guest.produced(id).await.unwrap().files_produced.into_keys().collect();
            let expected: Vec<String> = makes.then(|| format!("made-{round}")).into_iter().collect();
            assert_eq!(made, expected, "{round}");
        }
    }
}

#[tokio::test]
async fn code_is_executed_followed_and_asked_what_it_made() {
    let sandbox = Sandbox::start().await;
    let guest = &sandbox.guest;
    let place = sandbox.file("");
    let what = Execute {
        code: "print(input()); open('made', 'w').write('x')".into(),
        cwd: Some(place.display().to_string()),
        env: BTreeMap::from([("OUTPUT_DIR".into(), place.join("output").display().to_string())]),
        stdin: Some("typed".into()),
        ..Execute::default()
    };
    let stream = guest.execute(&what).await.unwrap();
    let id = stream.exec_id();
    let outcome = guest.gather(stream, OutputLimits::default()).await.unwrap();
    assert_eq!((outcome.exit, &outcome.stdout[..]), (Exit::Code(0), &b"typed\n"[..]));
    let made = BTreeMap::from([("made".to_owned(), "eA==".to_owned())]);
    assert_eq!(guest.produced(id).await.unwrap().files_produced, made);
    let whole = guest.execute_whole(&Execute { exec_id: Some(id), ..what.clone() }).await.unwrap();
    assert_eq!((whole.stdout.as_str(), whole.exec_id), ("typed\n", id), "a repeated id attaches");
    let refused =
        guest.execute(&Execute { language: Some("cobol".into()), ..what.clone() }).await.unwrap_err();
    assert_eq!(refused.code(), Some("language_unknown"));
    let unbuilt = CreateEnvironment { name: "e".into(), requirements: vec!["-x".into()], python_index: None };
    assert_eq!(guest.create_env(&unbuilt).await.unwrap_err().code(), Some("invalid"));
    for wrong in ["", "a/b", "a b", "é"] {
        assert!(matches!(guest.detach_env(wrong).await, Err(ClientError::Invalid(_))), "{wrong:?}");
    }
    assert!(guest.warm(&WarmRequest { environment: None, wait: true }).await.unwrap().ready);
}
