//! Code in a real sandbox, in fresh and in warm interpreters.

use std::collections::BTreeMap;

use cubicle_backend::Backend;
use cubicle_guest::client::{Event, Guest};
use cubicle_guest::wire::execute::{Environment, Execute, HostSide, Status, WarmRequest, Warmed};
use cubicle_guest::wire::{Activity, Start};
use cubicle_model::{Lifetime, Timestamp};

use crate::harness::{Host, place, run, skipped};

async fn sandbox(host: &Host) -> Option<(cubicle_backend_local::LocalBackend, Guest)> {
    let backend = host.backend().await;
    let place = place(Lifetime::Bound);
    backend.ensure(&place).await.unwrap();
    let guest = backend.guest(place.id);
    if run(&guest, "command -v python3").await.unwrap().stdout.is_empty() {
        skipped("the host has no python3 in /usr");
        return None;
    }
    Some((backend, guest))
}

fn code(code: &str, warm: bool) -> Execute {
    Execute { code: code.into(), host: HostSide { warm, ..HostSide::default() }, ..Execute::default() }
}

async fn warm_up(guest: &Guest, environment: Option<&str>) -> Warmed {
    let request = WarmRequest { environment: environment.map(str::to_owned), wait: true };
    guest.warm(&request).await.unwrap()
}

/// How it began, and what it printed.
async fn follow(guest: &Guest, what: &Execute) -> (Start, String) {
    let mut stream = guest.execute(what).await.unwrap();
    let (mut start, mut printed) = (None, Vec::new());
    while let Some(frame) = stream.next().await.unwrap() {
        match frame.event().unwrap() {
            Event::Start(begun) => start = Some(begun),
            Event::Stdout(bytes) | Event::Stderr(bytes) => printed.extend_from_slice(bytes),
            _ => {}
        }
    }
    (start.unwrap(), String::from_utf8(printed).unwrap())
}

#[tokio::test]
async fn code_runs_in_its_workspace_and_tells_what_it_made() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let Some((_backend, guest)) = sandbox(&host).await else { return };
    let request = Execute {
        files: BTreeMap::from([("in/a.txt".into(), "aGk=".into())]),
        ..code(
            "import os\nprint(os.getcwd(), open('in/a.txt').read())\nopen(os.environ['OUTPUT_DIR'] + '/b', 'w').write('x')",
            false,
        )
    };
    let executed = guest.execute_whole(&request).await.unwrap();
    assert_eq!((executed.status, executed.output.as_str()), (Status::Success, "/workspace hi\n"));
    assert_eq!(executed.produced.files_produced, BTreeMap::from([("output/b".into(), "eA==".into())]));
    assert!(!run(&guest, "ls -a /tmp | grep cubicle").await.unwrap().stdout.starts_with(b".cubicle"));
    let again = guest.produced(executed.exec_id).await.unwrap();
    assert_eq!(again, executed.produced);
}

#[tokio::test]
async fn a_warm_interpreter_runs_code_in_the_sandbox_as_an_exec_of_it() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let Some((_backend, guest)) = sandbox(&host).await else { return };
    assert_eq!(warm_up(&guest, None).await, Warmed { ready: true, because: None });
    assert_eq!(guest.health().await.unwrap().state, Activity::Idle);
    let look = "import os\nprint(os.getpid(), os.getppid(), os.getuid())\n\
                print([l for l in open('/proc/self/status') if l.startswith(('Cap', 'Seccomp', 'NoNew'))])";
    let (start, warm) = follow(&guest, &code(look, true)).await;
    assert!(start.warm);
    let (first, warm) = warm.split_once('\n').unwrap();
    assert!(first.starts_with(&format!("{} 1 ", start.pid)), "{first}");
    let (start, cold) = follow(&guest, &code(look, false)).await;
    assert!(!start.warm);
    assert_eq!(cold.split_once('\n').unwrap().1, warm, "neither has more rights than the other");
}

#[tokio::test]
async fn code_that_kills_everything_it_can_leaves_a_sandbox_that_runs_code() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let Some((_backend, guest)) = sandbox(&host).await else { return };
    warm_up(&guest, None).await;
    let killed = guest.execute_whole(&code("import os; os.kill(-1, 9); os.kill(os.getpid(), 9)", true)).await;
    assert_eq!(killed.unwrap().exit_code, 137);
    assert_eq!(follow(&guest, &code("print('alive')", true)).await.1, "alive\n");
    assert!(warm_up(&guest, None).await.ready);
    let (start, printed) = follow(&guest, &code("print('warm')", true)).await;
    assert_eq!((start.warm, printed.as_str()), (true, "warm\n"));
}

#[tokio::test]
async fn code_cannot_kill_its_parent() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let Some((_backend, guest)) = sandbox(&host).await else { return };
    warm_up(&guest, None).await;
    let attack = "import os, signal\nfor s in (9, 15, 19, 11):\n    try:\n        os.kill(os.getppid(), s)\n    \
                  except OSError as e: print(e.strerror)\nprint(os.getppid())";
    for warm in [true, false] {
        let executed = guest.execute_whole(&code(attack, warm)).await.unwrap();
        assert!(executed.stdout.lines().last() == Some("1"), "{executed:?}");
    }
    assert_eq!(guest.health().await.unwrap().status, "healthy");
}

#[tokio::test]
async fn an_environment_that_a_host_names_is_used_and_forgotten() {
    let Some(host) = Host::with_sandboxes().await else { return };
    let Some((_backend, guest)) = sandbox(&host).await else { return };
    let environment = Environment {
        name: "plain".into(),
        packages: vec!["a==1".into()],
        python_version: "3".into(),
        created_at: Timestamp::UNIX_EPOCH,
        last_used_at: Timestamp::UNIX_EPOCH,
        python: "/usr/bin/python3".into(),
        modules: vec!["decimal".into()],
        key: "k".into(),
    };
    guest.attach_env(&environment).await.unwrap();
    assert_eq!(guest.envs().await.unwrap(), [environment]);
    assert!(warm_up(&guest, Some("plain")).await.ready);
    let request = Execute {
        env_name: Some("plain".into()),
        ..code("import sys; print('decimal' in sys.modules)", true)
    };
    assert_eq!(follow(&guest, &request).await.1, "True\n");
    guest.detach_env("plain").await.unwrap();
    let refused = guest.execute(&request).await.unwrap_err();
    assert_eq!(refused.code(), Some("env_not_found"));
}
